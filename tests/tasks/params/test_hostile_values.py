"""Hostile values in params.yaml and `--set`: each is refused in one line that names its setting, before any work."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from model.common.errors import UserError
from tasks.params.forms import with_overrides
from tasks.params.reference import schemas
from tasks.params.root import load_params
from tasks.project.template import create
from tests.flows.clone import CLOZE
from tests.processor_time import check_processor_time

SECONDS, BYTES = 2.0, 10**9

WHOLE_NUMBERS = (
    *("corpus.min_words", "corpus.min_sentences", "corpus.shuffle_seed", "corpus.unit_bytes", "corpus.shard_bytes"),
    *("corpus.sources.2.max_documents", "corpus.sources.2.min_paragraph_words"),
    *("corpus.sources.2.lines_per_document", "corpus.sources.2.max_document_bytes"),
    *("corpus.gates.max_documents_with_sentence", "corpus.near_duplicates.shingle_words"),
    *("corpus.contamination.run_words", "tokenizer.vocab_size", "tokenizer.min_frequency", "tokenizer.max_alphabet"),
    *("pretrain.seed", "pretrain.num_parallel", "pretrain.encoders.0.seed", "pretrain.encoders.0.seeds.0"),
    *("pretrain.encoders.0.shape.hidden_size", "pretrain.encoders.0.shape.num_hidden_layers"),
    *("pretrain.encoders.0.shape.num_attention_heads", "pretrain.encoders.0.shape.intermediate_size"),
    *("pretrain.encoders.0.shape.max_position_embeddings", "pretrain.recipe.warmup_steps"),
    *("pretrain.recipe.accumulate", "pretrain.recipe.checkpoint_every_steps", "pretrain.recipe.checkpoints_kept"),
    *("pretrain.recipe.log_every_steps", "pretrain.recipe.validate_every_steps"),
    *("pretrain.recipe.validation_batches", "pretrain.recipe.masking.max_predictions"),
    *("pretrain.recipe.probes.every_steps", "pretrain.recipe.probes.max_rows"),
    *("pretrain.recipe.phases.0.sequence_length", "pretrain.recipe.phases.0.batch_size"),
    *("pretrain.recipe.phases.0.num_steps", "pretrain.recipe.phases.0.num_tokens"),
    *("pretrain.machine.num_devices", "pretrain.machine.num_nodes", "pretrain.machine.num_threads"),
    *("finetune.seeds.0", "finetune.num_workers", "finetune.memory_bytes", "finetune.epochs_factor.scratch"),
    *("finetune.prune.after_seeds", "finetune.jobs_per_device", "finetune.machine.num_threads"),
    *("finetune.recipe.batch_size", "finetune.recipe.num_epochs", "finetune.recipe.max_length"),
    *("finetune.recipe.doc_stride", "finetune.recipe.max_query_length", "finetune.recipe.max_answer_length"),
    *("finetune.recipe.num_best", "finetune.recipe.max_train_rows", "finetune.recipe.max_dev_rows"),
    *("finetune.recipe.adapt.frozen_layers", "finetune.recipe.adapt.reinitialized_layers"),
    *("finetune.grid.batch_size.0", "promotion.looks", "mirror.num_kept", "fetch.attempts"),
    *("fetch.max_unpacked_bytes", "fetch.sources.0.max_rows", "cluster.pretrain.nodes", "cluster.pretrain.devices"),
    *("cluster.pretrain.time_minutes", "cluster.pretrain.cpus"),
)
NUMBERS = (
    *("corpus.max_symbol_share", "corpus.sources.2.weight", "corpus.gates.min_script_share"),
    *("corpus.gates.max_repeated_sentences", "corpus.near_duplicates.threshold", "tokens.heldout_fraction"),
    *("pretrain.encoders.0.shape.initializer_range", "pretrain.encoders.0.shape.hidden_dropout_prob"),
    *("pretrain.recipe.weight_decay", "pretrain.recipe.betas.0", "pretrain.recipe.betas.1", "pretrain.recipe.eps"),
    *("pretrain.recipe.max_grad_norm", "pretrain.recipe.skip_spikes_above"),
    *("pretrain.recipe.short_sequence_probability", "pretrain.recipe.finish_within_seconds"),
    *("pretrain.recipe.pause_after_seconds", "pretrain.recipe.masking.rate", "pretrain.recipe.masking.mask"),
    *("pretrain.recipe.schedule.decay", "pretrain.recipe.schedule.floor", "pretrain.recipe.phases.0.learning_rate"),
    *("finetune.judge_share", "finetune.prune.keep", "finetune.prune.margin", "finetune.recipe.learning_rate"),
    *("finetune.recipe.warmup_fraction", "finetune.recipe.weight_decay", "finetune.recipe.dropout"),
    *("finetune.recipe.max_grad_norm", "finetune.recipe.adapt.layer_decay", "finetune.grid.learning_rate.0"),
    *("promotion.margin", "promotion.confidence", "promotion.max_collapse", "promotion.cost_per_hour"),
    *("mirror.patience_seconds", "mirror.drain_seconds", "mirror.stop_seconds"),
    *("fetch.wait_seconds", "fetch.timeout_seconds"),
)
HUGE = "9" * 5000  # Python converts up to 4,300 digits
TRUE = "expected a number, not true or false"
FINITE = "a finite number"
PHASE = "{learning_rate: 0.001, batch_size: %s, sequence_length: %s, num_tokens: %s}"
SOURCE = "{name: mine, path: books, kind: %s}"
HTTPS = f"{{name: mine, kind: https, to: mine, url: '%s', sha256: '{'0' * 64}'}}"
BOMB = ", ".join(f"&{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 10)}]" for n in range(9))
BOMB_OF_KEYS = ", ".join(
    f"{chr(98 + n)}: &{chr(98 + n)} {{{', '.join(f'k{m}: *{chr(97 + n)}' for m in range(10))}}}" for n in range(9)
)
GRID = {key: list(range(1, 99)) for key in ("batch_size", "num_epochs", "doc_stride", "num_best", "max_query_length")}

ROWS: list[tuple[str, str, str]] = [
    # numbers
    ("pretrain.seed", "18446744073709551616", "less than or equal to 18446744073709551615"),
    ("pretrain.seed", "0x" + "f" * 50_000, "valid integer"),
    ("pretrain.seed", "1" + ":59" * 20_000, "valid integer"),
    ("pretrain.seed", "0b_", "valid integer"),
    ("pretrain.seed", "-.inf", FINITE),
    ("pretrain.seed", "0.5", "valid integer"),
    ("pretrain.seed", "2024-02-31", "valid integer"),
    ("pretrain.seed", "2024-01-01", "valid integer"),
    ("pretrain.recipe.phases.0.num_steps", "1000000000000000000", "less than or equal to"),
    ("pretrain.recipe.phases.0.batch_size", "1000000000000000", "less than or equal to"),
    ("pretrain.recipe.phases.0.learning_rate", "1.0e+300", "less than or equal to"),
    ("pretrain.recipe.phases.0.learning_rate", "1.0e+999", FINITE),
    ("pretrain.recipe.phases.0.learning_rate", "1" + ":59" * 2000 + ".0", "valid number"),
    ("pretrain.recipe.phases.0", PHASE % ("[1]", 32, 10**9), "batch_size"),
    ("pretrain.recipe.phases.0", PHASE % ("aaaa", 1000, 10**9), "batch_size"),
    ("pretrain.recipe.phases.0", PHASE % (8, 32, ".nan"), "num_tokens"),
    ("pretrain.recipe.phases.0", PHASE % (8, 32, "1" + "0" * 400), "num_tokens"),
    ("pretrain.recipe.betas.0", "1", "less than 1"),
    ("pretrain.recipe.betas.1", "-0.5", "greater than or equal to 0"),
    ("pretrain.recipe.betas", "[0.9]", "is missing"),
    ("pretrain.recipe.give_up_above", "[{step: 9, mlm_loss: .nan}]", FINITE),
    ("pretrain.encoders.0.shape", "{hidden_size: 65536, num_hidden_layers: 999, num_attention_heads: 64}", "weights"),
    ("finetune.recipe.adapt", "{kind: lora, rank: 1000000000}", "less than or equal to"),
    ("finetune.recipe.adapt", "{kind: lora, alpha: .inf}", FINITE),
    ("finetune.recipe.adapt", "{kind: features, lstm_layers: 1000000000}", "less than or equal to"),
    ("finetune.recipe.adapt", "{kind: features, lstm_size: 1000000000}", "less than or equal to"),
    ("finetune.grid.num_epochs", "[yes]", TRUE),
    ("finetune.grid.learning_rate", "[]", "at least 1 item"),
    ("corpus.sources.2", SOURCE % "mediawiki, namespaces: [1000000000000]", "less than or equal to"),
    ("corpus.sources.2", SOURCE % "mediawiki, max_page_bytes: 1000000000000000000", "less than or equal to"),
    # numbers of elements
    ("finetune.seeds", str(list(range(5000))), "at most 1000 items"),
    ("pretrain.encoders.0.seeds", str(list(range(5000))), "at most 1000 items"),
    ("pretrain.encoders", str([{"name": f"e{number}"} for number in range(3000)]), "at most 1000 items"),
    ("pretrain.recipe.phases", f"[{'{}, ' * 3000}]", "at most 1000 items"),
    ("corpus.sources", f"[{', '.join([SOURCE % 'text'] * 1100)}]", "at most 1000 items"),
    ("fetch.sources", f"[{', '.join([HTTPS % 'https://host/x'] * 300)}]", "at most 200 items"),
    ("finetune.grid", json.dumps(GRID), "combinations of values; expected at most 1,000"),
    # texts
    ("pretrain.encoders.0.name", "a" * 65, "at most 64 characters"),
    ("pretrain.encoders.0.name", "../up", "match pattern"),
    ("pretrain.encoders.0.name", r'"a\0b"', "NUL"),
    ("pretrain.encoders.0.name", r'"a\n"', "match pattern"),
    ("pretrain.encoders.0.name", "2024-01-01", "valid string"),
    ("pretrain.encoders.0.name", "yes", "valid string"),
    ("pretrain.encoders.0.name", "1", "valid string"),
    ("pretrain.encoders.0.shape.preset", "a" * 100_000, "at most 10000 characters"),
    ("pretrain.encoders.0.shape.preset", r'"a\nb"', "one line"),
    ("pretrain.encoders.0.start", f"{{from: {'a' * 300}}}", "longer than 255 bytes"),
    ("pretrain.encoders.0.start", "{from: ../secret}", "below data/"),
    ("pretrain.recipe.probes.benchmarks", f"[{'a' * 300}.yaml]", "longer than 255 bytes"),
    ("corpus.sources.2.name", "a" * 300, "at most 64 characters"),
    ("corpus.sources.2.path", "ä" * 130, "longer than 255 bytes"),
    ("corpus.sources.2.path", "a/" * 3000, "longer than 1000 characters"),
    ("corpus.sources.2.path", r'"a\0b"', "NUL"),
    ("corpus.sources.2.path", "/etc", "below data/"),
    ("corpus.sources.2.language", "a" * 2000, "longer than 1000 characters"),
    ("corpus.sources.2.license", "a" * 20_000, "at most 10000 characters"),
    ("corpus.sources.2", SOURCE % r'csv, delimiter: "\n"', "match pattern"),
    ("corpus.scheduler", "tcp://" + "a" * 2000, "longer than 1000 characters"),
    ("corpus.contamination.benchmarks", f"[{'a' * 300}.yaml]", "longer than 255 bytes"),
    ("tokenizer.existing", "a" * 300, "longer than 255 bytes"),
    ("tokenizer.existing", r'"a\0b"', "NUL"),
    ("tokens.heldout_sources", f"[{'a' * 2000}]", "longer than 1000 characters"),
    ("finetune.tasks", f"[{'a' * 300}.yaml]", "longer than 255 bytes"),
    ("finetune.tasks", r'["a\nb.yaml"]', "one line"),
    ("finetune.encoders.0.name", "a" * 300, "at most 64 characters"),
    ("finetune.encoders.0.path", "a" * 300, "longer than 255 bytes"),
    ("finetune.benchmarks", f"{{{'a' * 300}: }}", "a key must be a text of one line"),
    ("finetune.benchmarks", r'{"a\nb": }', "a key must be a text of one line"),
    ("finetune.benchmarks", f"{{rte: {{after: {'a' * 2000}}}}}", "longer than 1000 characters"),
    ("leaderboard.notes", f"[{'a' * 20_000}]", "at most 10000 characters"),
    ("leaderboard.notes", "[2024-01-01]", "valid string"),
    ("leaderboard.notes", "[0x1f]", "valid string"),
    ("leaderboard.notes", r'["\ud800"]', "surrogate"),
    ("leaderboard.notes", "text", "valid tuple"),
    ("leaderboard.reference", "yes", "valid string"),
    ("promotion.model", "a" * 300, "at most 64 characters"),
    ("promotion.license", r'"a\nb"', "one line"),
    ("retrain.branch", "a" * 300, "at most 100 characters"),
    ("retrain.branch", "a..b", "match pattern"),
    ("retrain.branch", "a/", "match pattern"),
    ("retrain.timezone", "Mars/Phobos", "expected a time zone"),
    ("retrain.timezone", "../../etc/passwd", "expected a time zone"),
    ("retrain.timezone", "a" * 300, "expected a time zone"),
    ("retrain.cron", "every day", "match pattern"),
    ("cluster.pretrain.partition", r'"a\n#SBATCH --wrap=x"', "one line"),
    ("cluster.pretrain.memory", r'"64G\nreboot"', "one line"),
    ("cluster.pretrain.options", r'["--comment=a\nreboot"]', "one line"),
    ("cluster.python", "a" * 2000, "longer than 1000 characters"),
    ("fetch.sources.0.name", "a" * 300, "at most 64 characters"),
    ("fetch.sources.0.to", "a" * 300, "longer than 255 bytes"),
    ("fetch.sources.0", HTTPS % "https://[::1/x", "Invalid IPv6 URL"),
    ("fetch.sources.0", HTTPS % "https://host:99999999/x", "Port out of range"),
    ("mirror.endpoint_url", "http://host:99999999", "Port out of range"),
    # structure
    ("leaderboard.notes", "[" * 500 + "]" * 500, "more than 40 levels"),
    ("leaderboard.notes", "[" * 50_000, "more than 40 levels"),
    ("pretrain.recipe", "{x: " * 500 + "1" + "}" * 500, "more than 40 levels"),
    ("leaderboard.notes", f"[{'a, ' * 60_000}]", "more than 20,000 values"),
    ("leaderboard.notes", f"[&a [x, x, x, x, x, x, x, x, x, x], {BOMB}]", "more than 20,000 values"),
    ("pretrain.recipe", f"{{a: &a {{x: 1}}, {BOMB_OF_KEYS}}}", "more than 20,000 values"),
    ("leaderboard.notes", "&a [*a]", "contains itself"),
    ("pretrain.recipe", "&a {x: *a}", "contains itself"),
    ("pretrain.recipe", "{[1]: 2}", "a key must be a text of one line"),
    ("pretrain.recipe", "{{a: 1}: 2}", "a key must be a text of one line"),
    ("pretrain.recipe", "{1: 2}", "valid string"),
    ("pretrain.recipe", "{yes: 2}", "valid string"),
    ("corpus", "{1: 2, sources: [{name: books, kind: text, path: a}]}", "Keys should be strings"),
    ("pretrain.recipe", "[]", "valid dictionary"),
    ("pretrain.encoders.0", "[]", "expected keys and values"),
    ("leaderboard.notes", "!!python/object/apply:os.system [reboot]", "remove the tag"),
    ("leaderboard.notes", "!!python/name:os.system", "remove the tag"),
    ("leaderboard.notes", "!!binary aGVsbG8=", "remove the tag"),
    ("leaderboard.notes", "[!!binary aGVsbG8=]", "remove the tag"),
    ("leaderboard.notes", "!!set {a, b}", "remove the tag"),
    ("leaderboard.notes", "!!omap [a: 1]", "remove the tag"),
    ("pretrain.seed", '!!int ""', "remove the tag"),
    ("pretrain.seed", "!!bool maybe", "remove the tag"),
    ("pretrain.seed", "!!timestamp x", "remove the tag"),
]
ROWS_OF_KINDS = [
    *((path, "1000000000000000000000", "less than or equal to") for path in WHOLE_NUMBERS),
    *((path, HUGE, "exceeded maximum size") for path in WHOLE_NUMBERS),
    *((path, "-5", "greater than or equal to") for path in WHOLE_NUMBERS),
    *((path, "yes", TRUE) for path in WHOLE_NUMBERS),
    *((path, ".nan", FINITE) for path in NUMBERS),
    *((path, ".inf", FINITE) for path in NUMBERS),
    *((path, "1" + "0" * 400, "number") for path in NUMBERS),
    *((path, "yes", TRUE) for path in NUMBERS),
]
MANY = b"".join(b"k%d: 1\n" % number for number in range(5000))
MERGES = b"".join(b", &x%d {<<: *x%d}" % (number + 1, number) for number in range(5000))
FILES: list[tuple[bytes, str]] = [
    (b"", ": expected a mapping"),
    (b"\n# nothing\n", ": expected a mapping"),
    (b"- 1\n", ": expected a mapping"),
    (b"text", ": expected a mapping"),
    (b"a: 1\n---\na: 1\n", ":2: but found another document"),
    (b"a: \xff\xfe\n", ": not UTF-8 text (invalid start byte at byte 3)"),
    ("a: 1".encode("utf-16"), ": not UTF-8 text"),
    (b"a: 1\nb: \0\n", ":2: special characters are not allowed"),
    (b"a: 1\nb: \x1b[31m\n", ":2: special characters are not allowed"),
    (b"%YAML 9.9\n---\na: 1\n", ":1: found incompatible YAML document"),
    (b"a: 1\n b: 2\n", ":2: mapping values are not allowed here"),
    (b"a: [1\nb: {\n", ":2: expected ',' or ']', but got ':'"),
    (b"a: 'open\n", ":2: found unexpected end of stream"),
    (b"a: *gone\n", ":1: found undefined alias 'gone'"),
    (b"a: {<<: 3}\n", ":1: expected a mapping or list of mappings for merging, but found scalar"),
    (b"a: =\n", ":1: could not determine a constructor"),
    (b"a: {b: 1,\n  b: 2}\n", ":2: duplicate key 'b', also on line 1"),
    (b'a: "\\U00110000"\n', ":1: chr() arg not in range"),
    (b'a: "\\UFFFFFFFF"\n', ":1: Python int too large"),
    (b"{" + b"a" * 50_000 + b": 1}", ":1: expected ',' or '}'"),
    (b"a" * 20_000_000, ": larger than 500,000 bytes"),
    (b"- " * 200_000, ":1: 0.0.0"),
    (b"a: [" + b"{}, " * 100_000 + b"]", ":1: a.19999: more than 20,000 values"),
    (b"a: [&x0 {y: 1}" + MERGES + b"]\n<<: *x5000\n", ":1: a.140.<<: more than 20,000 values"),
]
AROUND: dict[str, Any] = {
    "corpus.sources.2": {"name": "mine", "kind": "text", "path": "books"},
    "fetch.sources.0": {"name": "mine", "kind": "dataset", "repo": "a/b", "to": "mine"},
    "finetune.encoders.0": {"name": "mine", "path": "mine"},
    "mirror": {"url": "s3://bucket/prefix"},
    "cluster": {"launcher": "slurm"},
}
"""Valid surroundings of settings that params.yaml does not contain."""


@pytest.fixture(scope="module")
def params(root: Path) -> dict[str, Any]:
    content = yaml.safe_load((root / "params.yaml").read_text())
    shared_by_no_alias: dict[str, Any] = json.loads(json.dumps(content))
    return shared_by_no_alias


def put(params: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path, with the groups and lists on the way."""
    place: Any = params
    *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    for key, following in zip(keys, [*keys[1:], last]):
        if isinstance(place, list):
            place.extend({} for _ in range(len(place), int(key) + 1))
        elif place.get(key) is None:
            place[key] = [] if isinstance(following, int) else {}
        place = place[key]
    if isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        place[last] = value


def around(params: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the content of a valid file, except for `value` at a dotted path."""
    content = copy.deepcopy(params)
    for group, given in AROUND.items():
        if path.startswith(f"{group}."):
            put(content, group, copy.deepcopy(given))
    put(content, path, value)
    return content


def written(params: dict[str, Any], path: str, text: str) -> str:
    """Return the text of a file with the YAML `text` at a dotted path."""
    content = yaml.safe_dump(around(params, path, "PLACE"), sort_keys=False, width=10**6)
    assert content.count("PLACE") == 1
    return content.replace("PLACE", text)


@contextlib.contextmanager
def refused(*expected: str) -> Iterator[None]:
    """Check that the block is refused in time, in one line with these parts."""
    begin = time.process_time()
    with pytest.raises(UserError) as caught:
        yield
    check_processor_time(time.process_time() - begin, SECONDS)
    check_line(str(caught.value), *expected)


def check_line(message: str, *expected: str) -> None:
    [line] = message.splitlines()
    assert len(line) < 1500 and line.isprintable()
    for part in expected:
        assert part in line, line


def named(path: str) -> str:
    """The setting that the message names; the address of a fetch source is named by the source."""
    return [key for key in path.split(".") if not key.isdigit()][-1].replace("sources", "source")


@pytest.mark.parametrize(("path", "text", "expected"), ROWS + ROWS_OF_KINDS)
def test_values_in_the_file(params: dict[str, Any], tmp_path: Path, path: str, text: str, expected: str) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(written(params, path, text))
    with refused("params.yaml", named(path), expected):
        load_params(file)


@pytest.mark.parametrize(("path", "text", "expected"), ROWS)
def test_values_of_set(params: dict[str, Any], path: str, text: str, expected: str) -> None:
    values = around(params, path, None)
    with refused(named(path), expected):
        with_overrides(values, [f"{path}={text}"], "params.yaml")


@pytest.mark.parametrize(("content", "expected"), FILES)
def test_whole_files(tmp_path: Path, content: bytes, expected: str) -> None:
    file = tmp_path / "params.yaml"
    file.write_bytes(content)
    with refused(f"{file}{expected}"):
        load_params(file)


def test_a_directory_and_a_device_are_no_files(tmp_path: Path) -> None:
    with refused(f"{tmp_path}: expected a file, found a directory"):
        load_params(tmp_path)
    with refused("/dev/zero: not a regular file"):
        load_params(Path("/dev/zero"))


def test_many_mistakes_are_cut_short(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_bytes(MANY)
    begin = time.process_time()
    with pytest.raises(UserError) as caught:
        load_params(file)
    check_processor_time(time.process_time() - begin, SECONDS)
    *lines, last = str(caught.value).splitlines()
    assert 0 < len(lines) <= 20 and last == "params.yaml: and more mistakes"


COMMANDS: list[tuple[str, str, list[str]]] = [
    ("leaderboard.notes", f"[&a [x, x, x, x, x, x, x, x, x, x], {BOMB}]", ["run"]),
    ("leaderboard.notes", "[" * 5000, ["run", "--dry-run"]),
    ("pretrain.seed", HUGE, ["run"]),
    ("pretrain.recipe.phases.0", PHASE % ("[1]", 10**6, 10**9), ["run", "--dry-run"]),
    ("pretrain.recipe.betas.0", ".nan", ["repro"]),
    ("pretrain.encoders.0.name", "a" * 300, ["run", "--params", "params.yaml"]),
    ("finetune.grid", json.dumps(GRID), ["finetune"]),
]


@pytest.mark.parametrize(("path", "text", "command"), COMMANDS)
def test_commands(params: dict[str, Any], tmp_path: Path, path: str, text: str, command: list[str]) -> None:
    create(tmp_path)
    (tmp_path / "params.yaml").write_text(written(params, path, text))
    check_command(tmp_path, command, named(path))


def test_command_with_set(tmp_path: Path) -> None:
    create(tmp_path)
    check_command(tmp_path, ["run", "--set", f"finetune.seeds=[{HUGE}]"], "finetune.seeds")


def check_command(project: Path, command: list[str], expected: str) -> None:
    """Run `cloze` until it refuses the value, and check the line, the exit code, its time and its memory.

    The time is that of the processor: other processes may share it.
    """
    before = set(project.iterdir())
    limited = ("sh", "-c", f'ulimit -d {BYTES // 1024}; exec "$@"', "sh", *CLOZE, *command)
    with subprocess.Popen(limited, cwd=project, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 2, said
    check_line(said, "cloze: ", expected)
    check_processor_time(usage.ru_utime + usage.ru_stime, SECONDS)
    assert {path.name for path in set(project.iterdir()) - before} <= {".cloze"}


def test_every_number_has_limits() -> None:
    """A new setting without limits fails here; values of grids have those of the recipe."""

    def unlimited(schema: Any, where: str) -> Iterator[str]:
        if isinstance(schema, list):
            for one in schema:
                yield from unlimited(one, where)
        elif isinstance(schema, dict):
            limits = [{"minimum", "exclusiveMinimum"} & set(schema), {"maximum", "exclusiveMaximum"} & set(schema)]
            if schema.get("type") in ("integer", "number") and not all(limits):
                yield where
            for key, part in schema.items():
                yield from unlimited(part, f"{where}.{key}")

    found = [where for text in schemas().values() for where in unlimited(json.loads(text), "")]
    assert [where for where in found if not re.search(r"\.grid\.", where)] == []
