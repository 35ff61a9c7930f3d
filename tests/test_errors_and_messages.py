"""Bad input raises a typed error whose message names the argument, what was expected, what came, and a hint."""

import copy
import json
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.calls import by_part
from torch import Tensor

import qkv
from qkv import masks, normalizers, scores
from qkv.errors import (
    ConfigError,
    DataError,
    DtypeError,
    MaskError,
    OutOfMemoryError,
    Place,
    QkvError,
    ShapeError,
    UnsupportedError,
    from_json_value,
    harmless,
    in_python,
    joined,
    nearest,
    on_command_line,
    setting,
    spelled,
    to_json_value,
)
from qkv.tasks.catalog import TASKS

Q, K = 3, 5


def inputs(**replaced: Any) -> tuple[Any, Any, Any]:
    given = {"query": torch.zeros(2, 2, Q, 4), "key": torch.zeros(2, 2, K, 4), "value": torch.zeros(2, 2, K, 6)}
    given |= replaced
    return given["query"], given["key"], given["value"]


def attend(options: dict[str, Any] | None = None, **replaced: Any) -> Callable[[], object]:
    return lambda: qkv.attention(*inputs(**replaced), **(options or {}))


def zeros(*shape: int, **options: Any) -> Tensor:
    return torch.zeros(*shape, **options)


# Each case: the call, the type of error, the argument, and words of what was expected, what came, and the hint.
CASES: dict[str, tuple[Callable[[], object], type[QkvError], str, tuple[str, ...]]] = {
    "query is a list": (attend(query=[[1.0]]), DtypeError, "query", ("a torch.Tensor", "list", "torch.as_tensor")),
    "query has one dimension": (
        attend(query=zeros(4)),
        ShapeError,
        "query",
        ("at least two dimensions", "(4,)", "x[None]"),
    ),
    "key is a number": (attend(key=zeros(())), ShapeError, "key", ("at least two dimensions", "()", "x[None]")),
    "value has one dimension": (
        attend(value=zeros(5)),
        ShapeError,
        "value",
        ("at least two dimensions", "(5,)", "x[None]"),
    ),
    "integer query": (
        attend(query=zeros(2, 2, Q, 4, dtype=torch.int64)),
        DtypeError,
        "query",
        ("floating-point", "int64", ".float()"),
    ),
    "complex value": (
        attend(value=zeros(2, 2, K, 6, dtype=torch.complex64)),
        DtypeError,
        "value",
        ("floating-point", "complex64"),
    ),
    "types differ": (
        attend(key=zeros(2, 2, K, 4, dtype=torch.float64)),
        DtypeError,
        "key",
        ("torch.float32, that of query", "torch.float64", "key.to(query.dtype)"),
    ),
    "half value": (
        attend(value=zeros(2, 2, K, 6).half()),
        DtypeError,
        "value",
        ("that of query", "float16", "value.to(query.dtype)"),
    ),
    "devices differ": (
        attend(key=zeros(2, 2, K, 4, device="meta")),
        DtypeError,
        "key",
        ("cpu, that of query", "meta", "key.to("),
    ),
    "widths differ": (
        attend(key=zeros(2, 2, K, 3)),
        ShapeError,
        "key",
        ("width 4, that of query", "width 3", "Bilinear"),
    ),
    "keys without values": (
        attend(value=zeros(2, 2, 4, 6)),
        ShapeError,
        "value",
        ("5 rows, as many as key", "4", "Every key needs"),
    ),
    "leading dimensions": (
        attend(key=zeros(2, 3, K, 4), value=zeros(2, 3, K, 6)),
        ShapeError,
        "key",
        ("broadcast", "(2, 3, 5, 4)", "enable_gqa=True"),
    ),
    "groups do not divide heads": (
        attend({"enable_gqa": True}, key=zeros(2, 3, K, 4), value=zeros(2, 3, K, 6)),
        ShapeError,
        "key",
        ("divide", "2 query heads, 3 key heads", "divisor"),
    ),
    "groups without heads": (
        lambda: qkv.attention(zeros(3, 4), zeros(5, 4), zeros(5, 4), enable_gqa=True),
        ShapeError,
        "enable_gqa",
        ("a head dimension", "(3, 4)", "(..., H, Q, D)"),
    ),
    "float mask": (
        attend({"mask": zeros(Q, K)}),
        MaskError,
        "mask",
        ("a bool tensor (True: may attend)", "float32", "bias="),
    ),
    "integer mask": (
        attend({"mask": zeros(Q, K, dtype=torch.int64)}),
        MaskError,
        "mask",
        ("a bool tensor", "int64", "(tensor != 0)"),
    ),
    "mask is a list": (attend({"mask": [[True]]}), MaskError, "mask", ("value of qkv.masks", "list", "causal()")),
    "mask of another size": (
        attend({"mask": zeros(Q, 4, dtype=torch.bool)}),
        MaskError,
        "mask",
        ("broadcasts to (..., Q, K) = (2, 2, 3, 5)", "(3, 4)", "mask[:, None]"),
    ),
    "mask of too many dimensions": (
        attend({"mask": zeros(2, 2, 2, Q, K, dtype=torch.bool)}),
        MaskError,
        "mask",
        ("(2, 2, 3, 5)", "(2, 2, 2, 3, 5)"),
    ),
    "mask inside an or": (
        attend({"mask": masks.causal() | zeros(Q, 4, dtype=torch.bool)}),
        MaskError,
        "mask",
        ("(2, 2, 3, 5)", "(3, 4)"),
    ),
    "float mask inside an and": (
        lambda: masks.causal() & zeros(Q, K),
        MaskError,
        "mask",
        ("a bool tensor", "float32", "bias="),
    ),
    "mask on another device": (
        attend({"mask": zeros(Q, K, dtype=torch.bool, device="meta")}),
        MaskError,
        "mask",
        ("cpu, that of query", "meta", "mask.to("),
    ),
    "lengths on another device": (
        attend({"mask": masks.lengths(zeros(2, dtype=torch.int64, device="meta"))}),
        MaskError,
        "mask",
        ("cpu, that of query", "meta", "mask.to("),
    ),
    "lengths for other items": (
        attend({"mask": masks.lengths(torch.tensor([1, 2, 3]))}),
        ShapeError,
        "keys",
        ("a prefix of (2, 2)", "(3,)", "(B,)"),
    ),
    "a length beyond the keys": (
        attend({"mask": masks.lengths(9)}),
        MaskError,
        "lengths(keys)",
        ("0 to 5", "9", "omit the mask"),
    ),
    "a length per item beyond the keys, inside an or": (
        attend({"mask": masks.causal() | ~masks.lengths(torch.tensor([5, 6]))}),
        MaskError,
        "lengths(keys)",
        ("0 to 5", "got 6"),
    ),
    "a negative length": (
        attend({"mask": masks.lengths(None, torch.tensor([1, -1]))}),
        MaskError,
        "lengths(queries)",
        ("0 to 3", "got -1"),
    ),
    "fractional lengths": (
        lambda: masks.lengths(torch.tensor([1.0])),
        MaskError,
        "keys",
        ("an integer", "float32", ".long()"),
    ),
    "bool offset": (lambda: masks.causal(True), MaskError, "offset", ("an integer", "True")),
    "unknown align": (
        lambda: masks.causal(align="bottom"),
        MaskError,
        "align",
        ('"start" or "end"', "'bottom'", "bottom-right"),
    ),
    "negative window": (lambda: masks.window(-1, 0), MaskError, "window(left)", ("0 or more, or None", "-1", "None")),
    "fractional window": (lambda: masks.window(0, 1.5), MaskError, "window(right)", ("0 or more", "1.5")),
    "documents of another length": (
        attend({"mask": masks.documents(torch.zeros(K, dtype=torch.int64))}),
        ShapeError,
        "documents(ids)",
        ("one id per position, 3", "(5,)", "documents(ids, key_ids)"),
    ),
    "fractional documents": (
        lambda: masks.documents(zeros(4)),
        MaskError,
        "documents(ids)",
        ("an integer tensor", "float32"),
    ),
    "dense of numbers": (
        lambda: masks.dense(zeros(4, 4)),
        MaskError,
        "dense(tensor)",
        ("a bool tensor", "float32", "tensor != 0"),
    ),
    "bool bias": (
        attend({"bias": zeros(Q, K, dtype=torch.bool)}),
        DtypeError,
        "bias",
        ("floating-point", "torch.bool", "mask="),
    ),
    "bias of another size": (
        attend({"bias": zeros(4, K)}),
        ShapeError,
        "bias",
        ("broadcasts to (..., Q, K)", "(4, 5)", "(H, Q, K)"),
    ),
    "bias on another device": (
        attend({"bias": zeros(Q, K, device="meta")}),
        DtypeError,
        "bias",
        ("cpu, that of query", "meta", "bias.to("),
    ),
    "dropout of one": (attend({"dropout": 1.0}), ConfigError, "dropout", ("from 0 up to", "1.0", "probability")),
    "negative dropout": (attend({"dropout": -0.1}), ConfigError, "dropout", ("from 0 up to", "-0.1")),
    "dropout of text": (attend({"dropout": "0.1"}), ConfigError, "dropout", ("from 0 up to", "'0.1'")),
    "unknown backend": (
        attend({"backend": "spda"}),
        UnsupportedError,
        "backend",
        ("one of auto, reference", "'spda'", '"sdpa"'),
    ),
    "backend that cannot serve": (
        attend({"backend": "sdpa", "score": scores.Gaussian()}),
        UnsupportedError,
        "backend",
        ("one that serves", "the scores are distances", 'backend="auto"'),
    ),
    "normalizer of text": (
        attend({"normalizer": "softmax"}),
        ConfigError,
        "normalizer",
        ("a value of qkv.normalizers", "'softmax'"),
    ),
    "normalizer class": (
        attend({"normalizer": normalizers.Softmax}),
        ConfigError,
        "normalizer",
        ("a value of qkv.normalizers",),
    ),
    "sum of scores that may be negative": (
        attend({"normalizer": normalizers.Sum()}),
        UnsupportedError,
        "normalizer",
        ("never negative", "ScaledDot, which may be negative", "Gaussian"),
    ),
    "score of text": (
        attend({"score": "dot"}),
        ConfigError,
        "score",
        ("qkv.scores or a callable", "'dot'", "function"),
    ),
    "score class": (attend({"score": scores.Dot}), ConfigError, "score", ("a value of qkv.scores", "Dot", "Dot()")),
    "score of the wrong shape": (
        attend({"score": lambda query, key: query}),
        ShapeError,
        "score",
        ("(2, 2, 3, 5)", "(2, 2, 3, 4)"),
    ),
    "score of nothing": (attend({"score": lambda query, key: None}), ShapeError, "score", ("(2, 2, 3, 5)", "NoneType")),
    "negative bandwidth": (
        lambda: scores.Gaussian(-1.0),
        ConfigError,
        "Gaussian(bandwidth)",
        ("above 0", "-1.0", "log_bandwidth.exp()"),
    ),
    "bandwidth of zero": (lambda: scores.Boxcar(0), ConfigError, "Boxcar(bandwidth)", ("above 0", "0")),
    "one bandwidth is negative": (
        lambda: scores.Epanechnikov(torch.tensor([1.0, -2.0])),
        ConfigError,
        "Epanechnikov(bandwidth)",
        ("above 0", "a tensor with minimum -2"),
    ),
    "bandwidth of text": (
        lambda: scores.SquaredDistance("1"),
        ConfigError,
        "SquaredDistance(bandwidth)",
        ("above 0", "'1'"),
    ),
    "negative power": (
        lambda: scores.Epanechnikov(power=0),
        ConfigError,
        "Epanechnikov(power)",
        ("above 0", "0", "Power 2"),
    ),
    "softcap of zero": (lambda: scores.ScaledDot(softcap=0.0), ConfigError, "ScaledDot(softcap)", ("above 0", "0.0")),
    "alpha of one": (lambda: normalizers.Entmax(1.0), ConfigError, "Entmax(alpha)", ("above 1", "1.0", "Softmax()")),
    "unknown activation": (
        lambda: scores.Concat(zeros(4), zeros(4), "leaky"),
        ConfigError,
        "Concat(activation)",
        ('"relu" or "leaky_relu"', '"leaky"', '"leaky_relu"'),
    ),
    "bandwidth for other heads": (
        attend({"score": scores.Gaussian(torch.ones(3))}),
        ShapeError,
        "Gaussian(bandwidth)",
        ("(2, 2)", "(3,)", "(H, ...)"),
    ),
    "sink for other heads": (
        attend({"normalizer": normalizers.Softmax(zeros(3))}),
        ShapeError,
        "Softmax(sink)",
        ("(2, 2)", "(3,)"),
    ),
    "bilinear of another width": (
        attend({"score": scores.Bilinear(zeros(3, 4))}),
        ShapeError,
        "Bilinear(weight)",
        ("width 4, that of query", "width 3"),
    ),
    "bilinear of a vector": (
        attend({"score": scores.Bilinear(zeros(4))}),
        ShapeError,
        "Bilinear(weight)",
        ("2 dimension(s) of its own", "(4,)"),
    ),
    "additive without projection": (
        attend({"score": scores.Additive(zeros(5))}),
        ShapeError,
        "query (already projected)",
        ("width 5", "width 4"),
    ),
    "additive of another width": (
        attend({"score": scores.Additive(zeros(5), zeros(5, 3), zeros(5, 4))}),
        ShapeError,
        "Additive(query_weight)",
        ("width 4, that of query", "width 3"),
    ),
    "additive that does not meet": (
        attend({"score": scores.Additive(zeros(5), zeros(6, 4), zeros(5, 4))}),
        ShapeError,
        "Additive(query_weight)",
        ("width 5, that of Additive(vector)", "width 6"),
    ),
    "additive of a number": (
        attend({"score": scores.Additive(zeros(()))}),
        ShapeError,
        "Additive(vector)",
        ("1 dimension(s) of its own", "()"),
    ),
    "concat of another width": (
        attend({"score": scores.Concat(zeros(4), zeros(7))}),
        ShapeError,
        "Concat(key_vector)",
        ("width 4", "width 7"),
    ),
    "parameter on another device": (
        attend({"score": scores.Gaussian(torch.ones(2, device="meta"))}),
        DtypeError,
        "Gaussian(bandwidth)",
        ("cpu, that of query", "meta"),
    ),
    "weight is a list": (
        attend({"score": scores.Bilinear([[1.0]])}),
        DtypeError,
        "Bilinear(weight)",
        ("a torch.Tensor", "list"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_message_names_argument_expected_got_and_mend(name: str) -> None:
    call, kind, argument, words = CASES[name]
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(f"{argument}: expected "), message
    assert "; got " in message
    assert message.rstrip().endswith((".", "?", ")")), "the hint is a sentence"
    assert len(message.split("; got ")[1].split(". ")) > 1, f"no hint: {message}"
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} in {message}"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "backend" not in name])
def test_siblings_say_the_same(name: str) -> None:
    """A mistake gives the same message from whichever function detects it."""
    call, kind, _, _ = CASES[name]
    with pytest.raises(kind) as caught:
        call()
    attention = qkv.attention
    try:
        for sibling in (qkv.attention_with_weights, qkv.attention_with_state, qkv.explain):
            qkv.__dict__["attention"] = sibling
            if (sibling is qkv.explain and name.startswith("score of the wrong")) or name == "score of nothing":
                continue  # inspecting a plan does not call a user-defined function
            with pytest.raises(kind) as again:
                call()
            assert str(again.value) == str(caught.value)
    finally:
        qkv.__dict__["attention"] = attention


def test_conventions_of_python_are_kept() -> None:
    for kind, base in (
        (ShapeError, ValueError),
        (DtypeError, TypeError),
        (MaskError, ValueError),
        (MaskError, TypeError),
        (UnsupportedError, NotImplementedError),
        (ConfigError, ValueError),
    ):
        assert issubclass(kind, base)
        assert issubclass(kind, QkvError)


def test_complaints_have_one_form() -> None:
    assert str(QkvError("a", "b", "c", "D.")) == "a: expected b; got c. D."


def test_nearest_names_one_or_all() -> None:
    assert nearest("softmx", ["softmax", "sum"]) == 'Did you mean "softmax"?'
    assert nearest("zzz", ["softmax", "sum"]) == "Valid: softmax, sum."


@pytest.mark.parametrize(
    ("got", "shown"), [("a fault.", "a fault"), ("a cut...", "a cut..."), ("a…", "a…"), ("Use x. Or y.", "Use x. Or y")]
)
def test_a_message_within_a_message_ends_once(got: str, shown: str) -> None:
    assert str(QkvError("x", "a number", got, "Mend it.")) == f"x: expected a number; got {shown}. Mend it."


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"score": "additive"}, "got 'additive'. Pass a value of the class qkv.scores.Additive."),
        ({"score": "scaled-dot"}, "Pass a value of the class qkv.scores.ScaledDot."),
        ({"score": "nearest"}, "Example: qkv.scores.ScaledDot()"),
        ({"normalizer": "Sparsemax"}, "Pass a value of the class qkv.normalizers.Sparsemax."),
        ({"normalizer": "none"}, "Example: qkv.normalizers.Sparsemax()."),
    ],
)
def test_a_name_in_place_of_a_value_is_answered_with_its_class(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        qkv.attention(*inputs(), **options)
    assert told in str(raised.value)


def test_a_sum_takes_the_concatenation_score_whose_relu_is_never_negative_and_refuses_the_leaky_one() -> None:
    query, key, value = inputs(
        query=torch.randn(2, 2, Q, 4), key=torch.randn(2, 2, K, 4), value=torch.randn(2, 2, K, 6)
    )
    relu = scores.Concat(torch.randn(4), torch.randn(4))
    _, weights = qkv.attention_with_weights(query, key, value, score=relu, normalizer=normalizers.Sum())
    expected = relu(query, key)
    torch.testing.assert_close(weights, expected / expected.sum(-1, keepdim=True).clamp(min=1e-30))
    output = qkv.attention(query, key, value, score=relu)
    torch.testing.assert_close(output, torch.softmax(expected, -1) @ value)  # softmax stays its own normalizer
    leaky = scores.Concat(torch.randn(4), torch.randn(4), "leaky_relu")
    with pytest.raises(UnsupportedError, match="never negative"):
        qkv.attention(query, key, value, score=leaky, normalizer=normalizers.Sum())


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("argument", ["query", "key", "value"])
@pytest.mark.parametrize("layout", ["jagged", "sparse", "sparse rows", "8 bits"])
def test_tensors_of_other_layouts_are_refused_by_name(layout: str, argument: str) -> None:
    x = torch.randn(3, 4)
    other = {
        "jagged": lambda: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged),
        "sparse": x.to_sparse,
        "sparse rows": x.to_sparse_csr,
        "8 bits": lambda: x.to(torch.float8_e4m3fn),
    }[layout]()
    given = {"query": x, "key": x, "value": x, argument: other}
    with pytest.raises(DtypeError, match=argument):
        qkv.attention(**given)
    if argument == "query":
        with pytest.raises(DtypeError, match="query"):
            qkv.attention(other, other, other)


def test_each_part_of_a_message_can_be_read() -> None:
    long = "x" * 100_000
    assert len(str(QkvError(long, long, long, long))) < 9000
    assert str(QkvError("a", long, "b", "c")).startswith(f"a: expected {'x' * 1000} … ")


def test_errors_are_data_that_front_ends_render() -> None:
    error = ConfigError(
        "heads", "a divisor of " + setting("width"), "3 for --width", "Set " + setting("heads", 2) + "."
    )
    assert (error.argument, error.got, error.file, error.line) == ("heads", "3 for --width", None, None)
    assert str(error) == "heads: expected a divisor of width; got 3 for --width. Set heads=2."
    assert error.render(on_command_line).endswith("a divisor of --width; got 3 for --width. Set --heads 2.")


def same(error: QkvError) -> None:
    """Expect that a copy, and what another process gets, show what the error shows, wherever they are shown."""
    copies = [error, pickle.loads(pickle.dumps(error)), copy.copy(error), error.about(error.args[0])]  # noqa: S301
    for other in (*copies, from_json_value(json.loads(json.dumps(to_json_value(error))))):
        assert (type(other), str(other), other.args) == (type(error), str(error), error.args)
        assert other.render(on_command_line) == error.render(on_command_line)


NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
TEXTS = st.text(max_size=8)
VALUES = st.none() | st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=8)
PARTS = st.lists(TEXTS | st.builds(setting, NAMES, VALUES), max_size=4).map(lambda texts: joined("", texts))


@given(argument=PARTS, texts=st.tuples(PARTS, PARTS, PARTS), kind=st.sampled_from([ConfigError, DataError, ShapeError]))
def test_fields_hold_what_the_message_shows(argument: str, texts: tuple[str, str, str], kind: type[QkvError]) -> None:
    same(error := kind(argument, *texts))
    assert error.args == (argument, *texts) == (error.argument, error.expected, error.got, error.hint)
    for spell, text in ((in_python, str(error)), (on_command_line, error.render(on_command_line))):
        shown, expected, got, hint = (spelled(part, spell) for part in error.args)
        if expected:
            got = got if got.endswith("..") else got.removesuffix(".")
            shown = shown.replace("\n", "\\n")
            assert text == harmless(f"{shown}: expected {expected}; got {got}. {hint}")


@given(st.lists(TEXTS | st.builds(setting, NAMES, VALUES), max_size=4), TEXTS)
def test_settings_can_be_spelled_in_any_sum_of_texts(texts: list[str], separator: str) -> None:
    for spell in (in_python, on_command_line):
        assert spelled(joined(separator, texts), spell) == separator.join(spelled(text, spell) for text in texts)


@by_part
@pytest.mark.parametrize("task", TASKS)
def test_fields_of_refused_settings_are_names(task: str, tmp_path: Path, whole: bool) -> None:
    """Each setting of a task, of a wrong type and out of its range, and then only the missing data."""
    wrong = ("?", -1, math.nan, [None], [1], {}, b"x", [("a", None)], "softmax", tmp_path / "none", True)
    for turn, name in enumerate(TASKS[task].table_of):
        for bad in wrong if whole else wrong[turn % 2 :: 2]:
            with pytest.raises(QkvError) as caught:
                qkv.train(task, out=tmp_path / "run", quiet=True, **{name: bad})  # type: ignore[call-overload]
            same(caught.value)
            assert not re.match(r"(model|data|training|tokenizer|ensemble)\.", caught.value.argument)


@pytest.mark.parametrize("kind", [ShapeError, MaskError, DataError, OutOfMemoryError, UnsupportedError])
def test_an_error_keeps_its_fields_when_it_is_copied(kind: type[QkvError]) -> None:
    error = kind(Place("pairs.tsv", 3), "two texts", "one", "Add a tab.")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), error.about(Place("pairs.tsv", 3))):  # noqa: S301
        assert (type(other), str(other), other.file, other.line) == (kind, str(error), "pairs.tsv", 3)


@pytest.mark.parametrize("user", ["--batch-size", "valid_data", "model.width", "--data", "a: expected b; got c"])
def test_what_the_user_gave_is_never_reworded(user: str) -> None:
    """Whatever a label looks like: a flag, a setting, a table's name."""
    pairs = [(label, f"number {n} is {label}") for n in range(10) for label in ("good", "bad")]
    with pytest.raises(DataError) as caught:
        qkv.train("classify", data=pairs, valid_data=[(user, "a film")], out="unused", steps=1, quiet=True)
    assert (caught.value.file, caught.value.line) == ("valid_data", 1)
    assert caught.value.got == f'"{user}"'
