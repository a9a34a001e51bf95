"""`coremill report` in a browser: pages open without errors, quickly, and their graphs move smoothly."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

from oracle.conftest import Command

#: Where the systems that we know of keep it. `COREMILL_CHROMIUM` names another place.
BROWSERS = ["chromium", "chromium-browser", "google-chrome"]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
#: A run of the machine that tests, which may be busy, against the bar of 30 frames a second on a quiet one.
LEAST_FRAMES = 30 if os.environ.get("COREMILL_QUIET") else 12
#: Names that a page must show as text.
HOSTILE = "</script><img src=x onerror=alert(1)>\"'\u202egnp.exe"


class Block(torch.nn.Module):
    """A layer of a Llama-like network, with enough operations that eight of them are over a hundred."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.gate, self.down = (torch.nn.Linear(width, width, bias=False) for _ in range(3))
        self.weight = torch.nn.Parameter(torch.ones(width))

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        scores = (self.query(y) @ self.key(y).transpose(-1, -2) / 8).tanh().softmax(-1)
        x = x + self.out(scores @ self.value(y))
        y = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


class Overflowing(torch.nn.Module):
    """One product leaves fp16; what follows brings it back."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = torch.relu(self.before(x) * 3e4 + 1e5) + x
        return self.after(torch.tanh(large / 1e5))


def export(model: torch.nn.Module, inputs: tuple, path: Path) -> Path:
    torch.manual_seed(0)
    torch.export.save(torch.export.export(model.eval(), inputs), path)
    return path


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, coremill: Command) -> dict[str, Path]:
    """A page of each kind."""
    folder = tmp_path_factory.mktemp("report")
    torch.manual_seed(0)
    x = torch.randn(1, 32, 64)
    layers = export(torch.nn.Sequential(*[Block(64) for _ in range(8)]), (x,), folder / "layers.pt2")
    many = export(torch.nn.Sequential(*[Block(16) for _ in range(48)]), (torch.randn(1, 8, 16),), folder / "many.pt2")
    overflow = export(Overflowing(), (torch.randn(4, 16),), folder / "overflow.pt2")
    for name, archive in {"layers": layers, "many": many, "overflow": overflow}.items():
        coremill("report", archive, "-o", folder / f"{name}.html")
    package, program, shared = folder / "layers.mlpackage", folder / "parts.pte", folder / "shared.pte"
    coremill("convert", layers, "-o", package)
    coremill("lower", layers, "-o", program, "--skip-ops", "aten.tanh.default", "--html", folder / "parts.html")
    coremill("lower", f"forward={layers}", f"again={layers}", "-o", shared, "--target", "ios18")
    coremill("report", shared, "--random", "1", "-o", folder / "shared.html")
    coremill("report", package, "--random", "1", "-o", folder / "timed.html")
    single = folder / "single.mlpackage"
    coremill("convert", layers, "-o", single, "--precision", "fp32")
    coremill("report", single, package, "--random", "1", "-o", folder / "pair.html")
    return {path.stem: path for path in folder.glob("*.html")}


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Chromium, if the machine has one."""
    named = os.environ.get("COREMILL_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        pytest.skip("no Chromium on this machine: install it, or name it in COREMILL_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, pages: dict[str, Path]) -> Iterator:
    """Opens a page; at the end, nothing was reported on its console and nothing was fetched."""
    problems: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})

    def open_page(name: str) -> Page:
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text) if message.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: problems.append(request.url) if not request.url.startswith("file:") else None)
        page.goto(pages[name].as_uri())
        page.wait_for_function("window.graphView && window.graphView.tree")
        return page

    yield open_page
    context.close()
    assert problems == []


KINDS = ["layers", "many", "overflow", "parts", "shared", "timed", "pair"]


@pytest.mark.parametrize("name", KINDS)
def test_opens(name: str, opened, pages: dict[str, Path]) -> None:
    """It is one small file that paints within a second and draws its graph."""
    assert pages[name].stat().st_size < 1_500_000
    page = opened(name)
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
    assert paint < 1000 * (30 / LEAST_FRAMES)
    drawn = "(() => { const c = document.querySelector('.stage canvas'); const d = c.getContext('2d')"
    drawn += ".getImageData(0, 0, c.width, c.height).data; return new Set(new Uint32Array(d.buffer)).size; })()"
    page.wait_for_function(f"{drawn} > 10")


def test_graph_of_a_thousand_operations_moves_smoothly(opened) -> None:
    page = opened("many")
    assert page.evaluate("graphView.fn.ops.length") > 1000
    page.get_by_role("button", name="Open all").click()
    frames = page.evaluate("""async () => {
        const frame = () => new Promise(requestAnimationFrame);
        await frame();
        const start = performance.now();
        let frames = 0;
        while (performance.now() - start < 2000) {
            graphView.x += 3; graphView.zoom(frames % 40 < 20 ? 1.05 : 1 / 1.05, 300, 300);
            await frame(); frames += 1;
        }
        return frames / ((performance.now() - start) / 1000);
    }""")
    assert frames >= LEAST_FRAMES, f"{frames:.1f} frames a second"


def test_search_finds_an_operation_and_a_click_shows_its_weights(opened) -> None:
    page = opened("layers")
    page.keyboard.press("/")
    page.keyboard.type("3_gate")
    page.keyboard.press("Enter")
    details = page.locator(".details")
    assert "linear" in details.inner_text()
    assert details.locator("svg .column").count() > 10
    assert "test_report.py" in details.inner_text(), "the line of Python"
    box = page.locator(".stage canvas").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert details.locator("svg .column").count() > 10


def test_overflow_stands_at_the_top(opened) -> None:
    """Whoever sees the page finds the operation without scrolling."""
    page = opened("overflow")
    first = page.locator("#findings .finding").first
    assert first.bounding_box()["y"] < 300
    text = first.inner_text()
    assert "error" in text and "NaN or infinite" in text
    data = page.evaluate("report")
    place = data["findings"][0]["place"]
    op = data["models"][place["model"]]["functions"][place["function"]]["ops"][place["op"]]
    # The bias does not fit fp16, so the sum stays in fp32: what overflows is the cast of the sum.
    assert op["type"] == "cast" and op["types"] == ["tensor<fp16, [4, 16]>"]
    first.get_by_role("button").click()
    assert op["name"] in page.locator(".details").inner_text()


def test_sections_show_what_was_asked_for(opened) -> None:
    assert opened("timed").locator("#time svg rect").count() > 50
    pair = opened("pair")
    assert pair.locator("#changes tbody tr").count() > 10
    assert pair.locator("#drift tbody tr").count() > 10
    parts = opened("parts")
    assert parts.locator("#program li.delegate").count() == 9
    assert "tanh" in parts.locator("#findings").text_content()
    assert opened("shared").locator("#program h3").count() == 2


def test_hostile_names_are_text(browser, coremill: Command, tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(4, 4).eval(), (torch.randn(2, 4),))
    archive = tmp_path / "plain.pt2"
    torch.export.save(program, archive)
    package = tmp_path / "plain.mlpackage"
    coremill("convert", archive, "-o", package, "--description", HOSTILE, "--author", HOSTILE)
    coremill("report", package, "-o", tmp_path / "page.html")
    page = browser.new_page()
    alerts: list[str] = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_function("window.graphView && window.graphView.tree")
    assert alerts == []
    assert HOSTILE in page.evaluate("document.getElementById('summary').textContent")
    assert page.locator("img").count() == 0
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["layers", "pair", "timed"])
def test_accessible(name: str, scheme: str, opened) -> None:
    page = opened(name)
    page.emulate_media(color_scheme=scheme)
    found = Axe().run(page).response["violations"]
    grave = [(rule["id"], rule["nodes"][0]["html"]) for rule in found if rule["impact"] in {"serious", "critical"}]
    assert grave == []


def test_writing_takes_little(coremill: Command, tmp_path: Path, pages: dict[str, Path]) -> None:
    """A page costs less than the command whose findings it shows."""
    program = pages["layers"].parent / "layers.mlpackage"
    line = ["run", program, "--random", "1", "--repeat", "20", "--profile"]

    def seconds(*more: object) -> float:
        def once() -> float:
            start = time.perf_counter()
            coremill(*line, *more)
            return time.perf_counter() - start

        return min(once() for _ in range(5))

    assert seconds("--html", tmp_path / "page.html") < 2 * seconds() + 0.05
