"""`coremill report` in a browser: pages open without errors, quickly, and their graphs move smoothly."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from oracle.conftest import Command
from oracle.support.cargo import ROOT, TARGET
from oracle.support.sampling import ALL

#: Names of Chromium's executable. `COREMILL_CHROMIUM` overrides them.
BROWSERS = ["chromium", "chromium-browser", "google-chrome"]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
#: Minimum frames per second. `COREMILL_QUIET` declares the machine idle.
MINIMUM_FRAME_RATE = 30 if os.environ.get("COREMILL_QUIET") else 12
#: Whether transformers have realistic sizes: a page of ViT-B/16 takes half a minute.
FULL_SIZE = ALL
#: A name that a page must escape.
HOSTILE = "</script><img src=x onerror=alert(1)>\"'\u202egnp.exe"


class Block(torch.nn.Module):
    """A layer of a Llama-like network with enough operations that eight of them exceed a hundred."""

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
    """One product overflows fp16; a later operation scales it back."""

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


class Picture(torch.nn.Module):
    """Inverts an image."""

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return 1 - picture


def zoo_export(name: str) -> Path:
    """The archive of a network of the zoo, exported unless it exists."""
    archive = TARGET / "exports" / f"{name}.pt2"
    if not archive.exists():
        line = [sys.executable, "-m", "oracle.zoo.exports", str(archive.parent), "--only", name]
        subprocess.run(line, cwd=ROOT, check=True)
    return archive


def vit(folder: Path) -> Path:
    if not FULL_SIZE:
        return zoo_export("vit_small")
    from torchvision.models import vit_b_16

    return export(vit_b_16(), (torch.randn(1, 3, 224, 224),), folder / "vit.pt2")


def llama(folder: Path) -> Path:
    if not FULL_SIZE:
        return zoo_export("llama")
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=2, use_cache=False))
    return export(model, (torch.randint(0, 512, (1, 64)),), folder / "llama.pt2")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, coremill: Command) -> dict[str, Path]:
    """A page of each kind."""
    folder = tmp_path_factory.mktemp("report")
    torch.manual_seed(0)
    x = torch.randn(1, 32, 64)
    layers = export(torch.nn.Sequential(*[Block(64) for _ in range(8)]), (x,), folder / "layers.pt2")
    many = export(torch.nn.Sequential(*[Block(16) for _ in range(48)]), (torch.randn(1, 8, 16),), folder / "many.pt2")
    overflow = export(Overflowing(), (torch.randn(4, 16),), folder / "overflow.pt2")
    archives = {"layers": layers, "many": many, "overflow": overflow}
    archives |= {"mobilenet": zoo_export("mobilenet_v2"), "vit": vit(folder), "llama": llama(folder)}
    for name, archive in archives.items():
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
    plan = folder / "plan.json"
    plan.write_text(json.dumps(planned(json.loads(coremill("inspect", package, "--json")), coremill("text", package))))
    coremill("report", package, "--plan", plan, "-o", folder / "planned.html")
    return {path.stem: path for path in folder.glob("*.html")}


def planned(summary: dict, text: str) -> dict:
    """A compute plan as a Mac would record it: softmax on the CPU, all else on the Neural Engine."""
    (function,) = (function["name"] for function in summary["functions"])
    operations = []
    for line in text.splitlines():
        left, equals, right = line.strip().partition(" = ")
        if equals and left.startswith("tensor<") and not right.startswith("const("):
            kind, name = right.split("(")[0], left.split()[-1]
            on_processor = kind == "softmax"
            operations.append({
                "function": function,
                "operator": f"ios15.{kind}",
                "outputs": [name],
                "cost": 0.01,
                "preferred": "cpu" if on_processor else "neural-engine",
                "supported": ["cpu"] if on_processor else ["cpu", "gpu", "neural-engine"],
            })
    return {"format_version": 1, "machine": "Apple M3 Pro", "system": "24A335", "operations": operations}


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
    """Opens a page; at the end, the console must be empty and nothing may have been fetched."""
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


KINDS = ["mobilenet", "vit", "llama", "layers", "many", "overflow", "parts", "shared", "timed", "pair", "planned"]


@pytest.mark.parametrize("name", KINDS)
def test_page_opens_quickly_and_draws_graph(name: str, opened, pages: dict[str, Path]) -> None:
    """A page is one small file that paints within a second and draws its graph."""
    assert pages[name].stat().st_size < 1_500_000
    page = opened(name)
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
    assert paint < 1000 * (30 / MINIMUM_FRAME_RATE)
    drawn = "(() => { const c = document.querySelector('.stage canvas'); const d = c.getContext('2d')"
    drawn += ".getImageData(0, 0, c.width, c.height).data; return new Set(new Uint32Array(d.buffer)).size; })()"
    page.wait_for_function(f"{drawn} > 10")


@pytest.mark.alone
def test_graph_with_1000_operations_pans_smoothly(browser: Browser, opened) -> None:
    """Counts the frames in the browser's own trace."""
    page = opened("many")
    assert page.evaluate("graphView.fn.ops.length") > 1000
    page.get_by_role("button", name="Open all").click()
    page.locator("#graph").scroll_into_view_if_needed()
    browser.start_tracing(page=page, categories=["viz"])
    page.evaluate("""async () => {
        const frame = () => new Promise(requestAnimationFrame);
        const start = performance.now();
        for (let frames = 0; performance.now() - start < 2000; frames += 1) {
            graphView.x += 3; graphView.zoom(frames % 40 < 20 ? 1.05 : 1 / 1.05, 300, 300);
            await frame();
        }
    }""")
    events = json.loads(browser.stop_tracing())["traceEvents"]
    drawn = sorted(e["ts"] for e in events if e["name"] == "Graphics.Pipeline.DrawAndSwap" and e["ph"] in "bBX")
    frames = (len(drawn) - 1) / (drawn[-1] - drawn[0]) * 1e6
    assert frames >= MINIMUM_FRAME_RATE, f"{frames:.1f} frames per second"


def test_search_and_click_show_operation_details(opened) -> None:
    page = opened("layers")
    page.keyboard.press("/")
    page.keyboard.type("3_gate")
    page.keyboard.press("Enter")
    details = page.locator(".details")
    assert "linear" in details.inner_text()
    assert details.locator("svg .column").count() > 10
    assert "test_report.py" in details.inner_text(), "the details do not show the Python source line"
    box = page.locator(".stage canvas").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert details.locator("svg .column").count() > 10


def test_overflow_finding_is_listed_first(opened) -> None:
    """The operation is visible without scrolling."""
    page = opened("overflow")
    first = page.locator("#findings .finding").first
    assert first.bounding_box()["y"] < 300
    text = first.inner_text()
    assert "error" in text and "NaN or infinite" in text
    data = page.evaluate("report")
    place = data["findings"][0]["place"]
    op = data["models"][place["model"]]["functions"][place["function"]]["ops"][place["op"]]
    # The bias exceeds fp16, so the sum stays in fp32, and the cast of the sum overflows.
    assert op["type"] == "cast" and op["types"] == ["tensor<fp16, [4, 16]>"]
    first.get_by_role("button").click()
    assert op["name"] in page.locator(".details").inner_text()


def test_findings_show_code_module_and_line(opened) -> None:
    """Text in backquotes is rendered as code. The finding also shows the Python source line."""
    page = opened("overflow")
    assert "/" not in page.locator("h1").inner_text()
    first = page.locator("#findings .finding").first
    assert first.locator("code").count() > 1
    assert "test_report.py:" in first.locator(".where").inner_text()
    assert "`" not in page.locator("#findings").inner_text()


def test_url_fragment_scrolls_to_section(browser: Browser, pages: dict[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(f"{pages['layers'].as_uri()}#graph")
    page.wait_for_function("window.graphView && window.graphView.tree")
    assert 0 <= page.locator("#graph").bounding_box()["y"] < 100
    context.close()


@pytest.mark.parametrize("width", [400, 900, 1600])
@pytest.mark.parametrize("name", ["llama", "overflow", "parts", "timed", "pair"])
def test_pages_fit_their_window(name: str, width: int, browser: Browser, pages: dict[str, Path]) -> None:
    """Tables and the graph scroll in their boxes; the page itself does not, also in print."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.goto(pages[name].as_uri())
    page.wait_for_function("window.graphView && window.graphView.tree")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    context.close()


def test_time_changes_drift_and_program_sections_render(opened) -> None:
    assert opened("timed").locator("#time svg rect").count() > 50
    pair = opened("pair")
    assert pair.locator("#changes tbody tr").count() > 10
    assert pair.locator("#drift tbody tr").count() > 10
    assert opened("shared").locator("#program h3").count() == 2


def test_partitions_show_color_and_transferred_bytes(opened) -> None:
    """Each `tanh` stays outside: its input is the result of one delegate and its output is used by the next."""
    page = opened("parts")
    assert "tanh" in page.locator("#findings").text_content()
    assert page.evaluate("graphView.colors") == "partition"
    categories = set(page.evaluate("graphView.fn.ops.map((op, at) => graphView.marks.category(at, 'partition')[0])"))
    assert categories == {"outside Core ML"} | {f"delegate {index}" for index in range(9)}
    (method,) = page.evaluate("report.program.methods")
    assert [step["kind"] for step in method["steps"]] == ["delegate", "kernels"] * 8 + ["delegate"]
    scores = 32 * 32 * 4
    for index in range(1, 17, 2):
        entering = [value["bytes"] for value in method["crossings"] if value["to"] == index]
        leaving = [value["bytes"] for value in method["crossings"] if value["from"] == index]
        assert (entering, leaving) == ([scores], [scores])
    # Every operation except for the first has an input: the delegates are connected.
    assert all(op["from"] for op in page.evaluate("graphView.fn.ops"))
    row = page.locator("#program tbody tr").nth(1)
    assert "kernels, outside" in row.inner_text() and "4.10 KB" in row.inner_text()
    row.get_by_role("button").click()
    assert "aten::tanh.out" in page.locator(".details").inner_text()


def test_recorded_compute_plan_replaces_estimate(
    opened, pages: dict[str, Path], coremill_fails: Command, tmp_path: Path
) -> None:
    page = opened("planned")
    top = page.locator("#findings").inner_text()
    ops = page.evaluate("graphView.fn.ops")
    processor = [op["name"] for op in ops if op["type"] == "softmax"]
    assert f"Core ML runs {len(ops) - len(processor)} of {len(ops)} operations on the Neural Engine" in top
    assert "Apple M3 Pro" in top and f"{len(processor)} × softmax" in top
    assert [op["name"] for op in ops if op.get("leaves")] == processor
    page.get_by_label("Color by").select_option("device")
    assert page.locator(".legend").inner_text().split("\n") == ["Neural Engine", "CPU"]
    assert "estimate" not in page.locator("#summary").inner_text()

    def plan_error(package: Path, plan: Path) -> str:
        error = coremill_fails("report", package, "--plan", plan, "-o", tmp_path / "no.html")
        assert not (tmp_path / "no.html").exists()
        return error

    folder = pages["planned"].parent
    other = json.loads((folder / "plan.json").read_text())
    other["operations"] = [operation | {"outputs": ["elsewhere"]} for operation in other["operations"]]
    (tmp_path / "other.json").write_text(json.dumps(other))
    assert "for another model" in plan_error(folder / "layers.mlpackage", tmp_path / "other.json")
    (tmp_path / "odd.json").write_text("{}")
    assert "not a compute plan" in plan_error(folder / "layers.mlpackage", tmp_path / "odd.json")
    assert "ExecuTorch program" in plan_error(folder / "parts.pte", folder / "plan.json")


def test_renders_image_inputs_and_outputs(browser: Browser, coremill: Command, tmp_path: Path) -> None:
    """Red increases downwards and green to the right; the output is the inverse."""
    rows, columns = 24, 32
    red, green = np.meshgrid(np.linspace(0, 1, rows), np.linspace(0, 1, columns), indexing="ij")
    picture = np.stack([red, green, np.zeros_like(red)])[None].astype(np.float32)
    archive = export(Picture(), (torch.from_numpy(picture),), tmp_path / "picture.pt2")
    package, page = tmp_path / "picture.mlpackage", tmp_path / "page.html"
    coremill("convert", archive, "-o", package)
    np.savez(tmp_path / "inputs.npz", picture=picture)
    coremill("run", package, "-i", tmp_path / "inputs.npz", "--profile", "--html", tmp_path / "run.html")
    coremill("report", package, "-i", tmp_path / "inputs.npz", "-o", page)
    shown = browser.new_page()
    shown.goto(page.as_uri())
    pixels = shown.evaluate(f"""[...document.querySelectorAll("#pictures canvas")].map((canvas) => [
        ...canvas.getContext("2d").getImageData(0, {rows - 1}, 1, 1).data])""")
    assert pixels == [[255, 0, 0, 255], [0, 255, 255, 255]]
    assert shown.locator("#pictures figcaption").first.inner_text() == "input picture"
    shown.goto((tmp_path / "run.html").as_uri())
    assert shown.locator("#pictures canvas").count() == 2
    shown.close()


def test_escapes_hostile_names(browser: Browser, coremill: Command, tmp_path: Path) -> None:
    """The name is a module's name, and also the description and the author."""
    model = torch.nn.Sequential()
    model.add_module(HOSTILE.replace(".", " "), torch.nn.Linear(4, 4))
    archive = export(model, (torch.randn(2, 4),), tmp_path / "plain.pt2")
    package = tmp_path / "plain.mlpackage"
    coremill("convert", archive, "-o", package, "--description", HOSTILE, "--author", HOSTILE)
    coremill("report", package, "-o", tmp_path / "package.html")
    coremill("report", archive, "-o", tmp_path / "archive.html")
    alerts: list[str] = []
    for name in ["package", "archive"]:
        page = browser.new_page()
        page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
        page.goto((tmp_path / f"{name}.html").as_uri())
        page.wait_for_function("window.graphView && window.graphView.tree")
        page.evaluate("graphView.reveal(graphView.tree.leaves.find((leaf) => leaf.op.type === 'linear'))")
        if name == "package":
            assert HOSTILE in page.evaluate("document.getElementById('summary').textContent")
        else:
            assert "onerror=alert(1)" in page.locator(".details").inner_text()
            assert "onerror=alert(1)" in page.locator("#operations").inner_text()
        assert page.locator("img").count() == 0
        page.close()
    assert alerts == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["mobilenet", "pair", "timed", "parts", "planned"])
def test_pages_pass_accessibility_audit(name: str, scheme: str, opened) -> None:
    page = opened(name)
    page.emulate_media(color_scheme=scheme)
    found = Axe().run(page).response["violations"]
    severe = [(rule["id"], rule["nodes"][0]["html"]) for rule in found if rule["impact"] in {"serious", "critical"}]
    assert severe == []


@pytest.mark.alone
def test_html_output_adds_little_run_time(coremill: Command, tmp_path: Path, pages: dict[str, Path]) -> None:
    """Writing the page takes less time than the command itself."""
    program = pages["layers"].parent / "layers.mlpackage"
    line = ["run", program, "--random", "1", "--repeat", "20", "--profile"]

    def seconds(*more: object) -> float:
        def once() -> float:
            start = time.perf_counter()
            coremill(*line, *more)
            return time.perf_counter() - start

        return min(once() for _ in range(5))

    assert seconds("--html", tmp_path / "page.html") < 2 * seconds() + 0.05
