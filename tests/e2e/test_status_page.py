"""The status page in a real browser: what its document says, and that there is something to see."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import longshore
from conftest import Daemon, start_daemon
from load import SHAPE, load, rows

NAMES = ("summary of a novel", "<b>chat</b> & \"notes\"", "code review", "minutes of a meeting")
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
WIDTH, HEIGHT = 1200, 1060
DARK = "--blink-settings=preferredColorScheme=0"


def browser(*arguments: str) -> str:
    """What headless Chromium writes to its standard output."""
    found = [path for path in map(shutil.which, BROWSERS) if path]
    if not found:
        pytest.skip(f"SKIPPED: the status page in a browser, there is none of {', '.join(BROWSERS)}")
    command = [found[0], "--headless", "--disable-gpu", "--hide-scrollbars"]
    command.append(f"--window-size={WIDTH},{HEIGHT}")
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # which does not work for root; the page is our own
    command += arguments
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.fixture(scope="module")
def busy_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = start_daemon(tmp_path_factory.mktemp("status"), "--pool-bytes=1GiB", "--threads=1")
    with load(daemon.target, NAMES):
        with longshore.connect(daemon.target) as client, client.open_session(SHAPE, max_tokens=9) as short:
            for _ in range(3):
                with pytest.raises(longshore.OutOfRange):
                    short.prefill(0, *rows(10))  # more than it may become
        time.sleep(3)  # enough steps for numbers that mean something
        yield daemon
    assert daemon.stop() == 0, daemon.log.read_text()


def test_it_is_well_formed(busy_daemon: Daemon) -> None:
    with urllib.request.urlopen(f"http://{busy_daemon.metrics}/", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        document = answer.read().decode()
    root = ElementTree.fromstring(document)
    names = [element.text for element in root.iter("{http://www.w3.org/1999/xhtml}bdi")]
    assert sorted(names) == sorted(NAMES)
    for attribute in ("src=", "@import", "url(", "<script"):
        assert attribute not in document, "it needs nothing else"


def test_a_browser_sees_its_numbers(busy_daemon: Daemon) -> None:
    dom = browser("--dump-dom", f"http://{busy_daemon.metrics}/")
    assert '<span class="pill good">serving</span>' in dom
    assert "summary of a novel" in dom
    assert "&lt;b&gt;chat&lt;/b&gt; &amp; \"notes\"" in dom and "<b>chat</b>" not in dom
    assert "4 <span>of 256</span>" in dom and "pool of 1.00 GiB" in dom
    for part in ("DecodeStep", "prune_0", "/ 10,000", "MAX_TOKENS"):
        assert part in dom, part


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_there_is_something_to_see(busy_daemon: Daemon, tmp_path: Path, scheme: str) -> None:
    """The pictures are kept where LONGSHORE_SCREENSHOTS says, for people to look at."""
    folder = Path(os.environ.get("LONGSHORE_SCREENSHOTS", tmp_path))
    path = folder / f"status-{scheme}.png"
    flags = [DARK] if scheme == "dark" else []
    browser(*flags, f"--screenshot={path}", f"http://{busy_daemon.metrics}/")
    with Image.open(path) as image:
        pixels = image.convert("RGB")
        assert pixels.size == (WIDTH, HEIGHT)
        colors = sorted(pixels.getcolors(1 << 24), reverse=True)
    assert len(colors) > 100, "text is smooth, so it has many colours"
    share = colors[0][0] / (WIDTH * HEIGHT)
    assert share < 0.9, f"{share:.0%} of it is {colors[0][1]}"
    corner = pixels.getpixel((2, 2))
    assert (sum(corner) > 600) == (scheme == "light"), corner
