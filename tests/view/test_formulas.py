"""The formulas of the catalogs in JavaScript: each entry has one, and it computes what Python computes."""

import pytest
import torch
from tests.view.javascript import JavaScript, largest_difference

from qkv.nn.scores import LearnedScore
from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores.catalog import SCORES

SIZES = {"D": 6, "E": 6, "A": 6}


@pytest.fixture(scope="module")
def js(browser):
    return JavaScript(browser)


def as_json(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", SCORES)
def test_a_score_has_a_formula_for_pages(js, name, number):
    entry = SCORES[name]
    generator = torch.Generator().manual_seed(number)
    query, keys = torch.randn(6, generator=generator), torch.randn(9, 6, generator=generator)
    keys = query + 0.4 * keys
    values = {each.name: each.default * (1 + number) for each in entry.numbers}
    values |= {
        part: torch.randn([SIZES[letter] for letter in letters], generator=generator)
        for part, letters in entry.tensors.items()
    }
    if name == "additive" and number:
        values |= {side: torch.randn(6, 6, generator=generator) for side in ("query_weight", "key_weight")}
    if name == "learned":
        module = LearnedScore(6, 6, hidden=5).double()
        score = module.value()
        fields = {"query_weight": module.query.weight, "query_bias": module.query.bias, "key_weight": module.key.weight}
        fields |= {"vector": module.vector}
    else:
        score = entry.make(**values)
        fields = vars(score)
    expected = score(query[None].double(), keys.double())[0].detach()
    run = "([name, q, keys, p]) => keys.map((k) => m['formulas.js'].SCORES[name].formula(q, k, p))"
    given = [name, query.tolist(), keys.tolist(), {field: as_json(value) for field, value in fields.items()}]
    assert largest_difference(js.evaluate(run, given), expected) < 1e-5
    if number == 0 and len(fields) > 0:  # the numbers matter
        assert expected.std() > 0 or name == "uniform"


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("changes", [{}, {"sink": 0.5}, {"bias": -1.5}, {"alpha": 1.2}, {"alpha": 3.0}], ids=str)
def test_a_normalizer_has_a_formula_for_pages(js, name, changes):
    entry = NORMALIZERS[name]
    fields = {field: value for field, value in changes.items() if field in entry.cls.__dataclass_fields__}
    normalizer = entry.make(**fields)
    scores = 3 * torch.randn(7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    scores = torch.cat([scores.abs() if name == "sum" else scores, scores.abs().max()[None]])
    run = "([name, s, p]) => [...m['formulas.js'].NORMALIZERS[name].formula(Float64Array.from(s), p)]"
    given = [name, scores.tolist(), {field: as_json(value) for field, value in vars(normalizer).items()}]
    assert largest_difference(js.evaluate(run, given), normalizer(scores[None])[0]) < 1e-7
    alone = js.evaluate(run, [name, scores[:1].tolist(), given[2]])
    assert largest_difference(alone, normalizer(scores[None, :1])[0]) < 1e-7


def test_what_is_never_negative_is_so_in_both_languages(js):
    positive = js.evaluate("() => Object.entries(m['formulas.js'].SCORES).flatMap(([n, e]) => e.positive ? [n] : [])")
    assert positive == [name for name, entry in SCORES.items() if entry.cls.non_negative]
    offered = js.evaluate("() => Object.entries(m['formulas.js'].SCORES).flatMap(([n, e]) => e.offered ? [n] : [])")
    assert offered == [name for name, entry in SCORES.items() if entry.only_numbers]
