"""Byte-pair merging of one word."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

# (left id, right id) -> (rank, id of the pair); the lowest rank is merged first.
Merges = dict[tuple[int, int], tuple[int, int]]

_MERGED = -1  # in place of an id: this symbol is part of its left neighbour now


def merge(symbols: Sequence[int], merges: Merges) -> list[int]:
    """Merges neighbours, the lowest rank first and the leftmost of equals, until no merge applies.

    symbols: the word's ids, one a byte. A heap over a linked list makes it O(n log n), because a
    "word" of a document can be a megabyte of base64.
    """
    ids = list(symbols)
    left = list(range(-1, len(ids) - 1))
    right = list(range(1, len(ids) + 1))
    heap: list[tuple[int, int, int, int]] = []  # (rank, index, left id, right id)

    def offer(index: int) -> None:
        """Queues the pair that starts at `index`, if there is one that merges."""
        if index < 0 or right[index] == len(ids):
            return
        pair = ids[index], ids[right[index]]
        if pair in merges:
            heapq.heappush(heap, (merges[pair][0], index, *pair))

    for index in range(len(ids)):
        offer(index)
    while heap:
        _, index, left_id, right_id = heapq.heappop(heap)
        follower = right[index]
        if follower == len(ids) or (ids[index], ids[follower]) != (left_id, right_id):
            continue  # an earlier merge took one of the two
        ids[index], ids[follower] = merges[left_id, right_id][1], _MERGED
        right[index] = right[follower]
        if right[index] < len(ids):
            left[right[index]] = index
        offer(left[index])
        offer(index)
    return [i for i in ids if i != _MERGED]
