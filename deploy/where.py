#!/usr/bin/env python3
"""Says where a document has the words of an answer, so that one can check the answer.

  where.py DOCUMENT ANSWER
"""

import collections
import pathlib
import re
import sys

AROUND = 10  # words shown before and after
FEWEST = 3  # words in a row that are worth showing


def words(text: str) -> list[re.Match[str]]:
    return list(re.finditer(r"\w+", text.lower()))


def common_run(answer: list[str], document: list[str]) -> tuple[int, int]:
    """(where in the document, length) of the run of words which both have and which says most.

    A word says the more the rarer it is in the document: 1 / occurrences.
    """
    occurrences = collections.Counter(document)
    best, result = 0.0, (0, 0)
    before = [0] * (len(answer) + 1)  # [j]: length of the common run that ends before answer[j]
    for i, word in enumerate(document):
        runs = [0] + [before[j] + 1 if word == other else 0 for j, other in enumerate(answer)]
        for length in filter(None, runs):
            worth = sum(1 / occurrences[said] for said in document[i - length + 1 : i + 1])
            if worth > best:
                best, result = worth, (i - length + 1, length)
        before = runs
    return result


def main() -> None:
    text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8", errors="replace")
    answer = pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")
    found = words(text)
    where, length = common_run([word[0] for word in words(answer)], [word[0] for word in found])
    if length < FEWEST:
        print(f"No telling {FEWEST} words of the answer stand together in the document.")
        return
    begin = found[max(0, where - AROUND)].start()
    end = found[min(len(found), where + length + AROUND) - 1].end()
    passage = " ".join(text[begin:end].split())
    print(f"The document's own words, {where:,} of {len(found):,} words in: ... {passage} ...")


if __name__ == "__main__":
    main()
