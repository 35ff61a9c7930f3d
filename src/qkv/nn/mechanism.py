"""An attention mechanism described by names and numbers, as in flags, settings files and checkpoints.

It is the base of the configurations of models, and imports no PyTorch: commands list its settings in their help.
"""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from qkv.errors import ConfigError, nearest, setting
from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores.catalog import DISTANCES, KERNELS, POWERS, SCORES
from qkv.settings import Option, check
from qkv.values.catalog import as_flag, listed

if TYPE_CHECKING:
    from qkv.nn.normalizers import NormalizerModule
    from qkv.nn.scores import ScoreModule
    from qkv.normalizers.base import Normalizer
    from qkv.scores.base import Score

_NONE = "none"
LOCATION = "location"
"""The score that reads the weights of the step before too, for decoders that take one step after another."""
ATTENTION = "Attention"
"""The topic of the help in which these settings stand."""


def score_option(more: str = "", or_else: str | None = None) -> Option:
    """Return the setting that chooses a score.

    Args:
        more: scores that a task has besides those of the catalog, to end the help.
        or_else: the default, in words, where it depends on the model.
    """
    help = f"How queries are compared with keys: {SCORES.described()} (a small network){more}"
    return Option(help, topic=ATTENTION, or_else=or_else)


ScoreName = Annotated[str, score_option()]


@cache
def _summable() -> tuple[str, ...]:
    """Return the scores that a sum can normalize."""
    from qkv.scores.example import example  # imports PyTorch

    return tuple(name for name in SCORES if name != "learned" and example(name).summable)


@dataclass(frozen=True, kw_only=True)
class MechanismConfig:
    """A score and a normalizer; the base of every model's configuration, so that all models have the same settings.

    Names can be spelled with dashes or underscores, and with the aliases of the literature.

    Args:
        score: the name of a score, see `qkv.scores.catalog`; "none" where a model can do without attention, "location"
            where its attention takes one step after another.
        normalizer: the name of a normalizer; None for "sum" over kernels and "softmax" over all other scores.
        alpha: α of entmax, above 1, or "learned" for one per head between 1 and 2; None for 1.5.
        sinks: whether each head has a learned sink, which lets it attend to nothing (softmax only).
        bandwidth: h of a kernel or the squared distance; None learns it, from the median distance of the first batch.
        power: of a kernel that has one; None for its default.

    Raises:
        ConfigError: a name is unknown (the message suggests the closest one), or a number or normalizer does not apply
            to the score.

    Example:
        >>> MechanismConfig(score="general").score, MechanismConfig(score="gaussian").normalizer
        ('bilinear', 'sum')
        >>> MechanismConfig(score="dot", normalizer="sum")
        Traceback (most recent call last):
        qkv.errors.ConfigError: normalizer: expected softmax, mean, hard, identity, sparsemax, entmax or sigmoid
        for dot; got "sum". Sums normalize scores that are never negative: boxcar, ...
    """

    stepwise: ClassVar[bool] = False
    """Whether the attention takes one step after another, each of which can read the weights of the one before."""

    score: ScoreName = "scaled_dot"
    normalizer: Annotated[
        str | None,
        Option(
            f"How scores become weights: {NORMALIZERS.described()}",
            topic=ATTENTION,
            or_else="softmax, but sum for kernels",
        ),
    ] = None
    alpha: Annotated[
        float | Literal["learned"] | None,
        Option(
            "Alpha of entmax: a number above 1, or learned",
            topic=ATTENTION,
            above=1,
            hint="1.5 lies between softmax and sparsemax.",
            or_else=1.5,
        ),
    ] = None
    sinks: Annotated[bool, Option("Let each head attend to nothing (softmax)", topic=ATTENTION)] = False
    bandwidth: Annotated[
        float | None,
        Option(
            "Bandwidth of a kernel",
            topic=ATTENTION,
            above=0,
            hint="Omit it to learn it.",
            or_else="learned, from the median distance in the first batch",
        ),
    ] = None
    power: Annotated[
        float | None,
        Option(
            f"Power of {listed(POWERS, 'or')}",
            topic=ATTENTION,
            above=0,
            hint="Omit it for the default, 2.",
            or_else=2,
        ),
    ] = None

    def __post_init__(self) -> None:
        check(self)
        score = score_name(self.score)
        object.__setattr__(self, "score", score)
        default = _default_normalizer(score)
        object.__setattr__(self, "normalizer", default if self.normalizer is None else _normalizer(self.normalizer))
        self._check()

    @property
    def attends(self) -> bool:
        """Whether there is attention at all."""
        return self.score != _NONE

    @property
    def needs_equal_widths(self) -> bool:
        """Whether queries and keys must have the same width."""
        from qkv.scores.base import Score

        return self._class is not None and self._class.check is Score.check

    @property
    def rotates(self) -> bool:
        """Whether rotary positions suit the score: of rotated vectors, only products and distances depend just on the
        difference of positions.
        """
        return self._class is not None and self._class.core in ("dot", "distance") and self.score != "uniform"

    @property
    def without_gradient(self) -> str | None:
        """The setting that gives the scores no gradient (a `qkv.errors.Message`); None if they have one."""
        if self.normalizer is not None and NORMALIZERS[self.normalizer].cls.piecewise_constant:
            return setting("normalizer", self.normalizer)
        constant = self._class is not None and self._class.piecewise_constant
        return setting("score", as_flag(self.score)) if constant else None

    @property
    def blurs(self) -> bool:
        """Whether a softmax, with a sink or without, is taken of a kernel: its weights are then nearly uniform."""
        return self.normalizer == "softmax" and self.score in KERNELS

    @property
    def _class(self) -> "type[Score] | None":
        """The class of the score; None for "none" and "location"."""
        return SCORES[self.score].cls if self.score in SCORES else None

    def replaced(self, score: str | None = None, normalizer: str | None = None) -> "MechanismConfig":
        """Return this mechanism with another score or normalizer, without the numbers that do not apply to them.

        Example:
            >>> MechanismConfig(score="gaussian", bandwidth=2.0).replaced(score="dot")
            MechanismConfig(score='dot', normalizer='softmax', alpha=None, sinks=False, bandwidth=None, power=None)
        """
        normalizer_kept = None if self.normalizer == _default_normalizer(self.score) else self.normalizer
        new = MechanismConfig(score=score or self.score, normalizer=normalizer or normalizer_kept)
        return MechanismConfig(
            score=new.score,
            normalizer=new.normalizer,
            alpha=self.alpha if new.normalizer == "entmax" else None,
            sinks=self.sinks and new.normalizer == "softmax",
            bandwidth=self.bandwidth if new.score in DISTANCES else None,
            power=self.power if new.score in POWERS else None,
        )

    def score_module(
        self,
        query_width: int,
        key_width: int,
        *,
        hidden: int | None = None,
        heads: int | None = None,
        key_heads: int | None = None,
    ) -> "ScoreModule":
        """Create the score, with new parameters.

        Args:
            query_width: D.
            key_width: E; some scores need E = D.
            hidden: A, of the additive score and the small network; None for D.
            heads: H, for one set of parameters per head; None for one set. The small network has one for all heads.
            key_heads: G, if groups of heads share a key head.

        Returns:
            The module.

        Raises:
            ConfigError: the score does not support these widths.

        Example:
            >>> MechanismConfig(score="gaussian").score_module(8, 8, heads=2).log_bandwidth.shape
            torch.Size([2])
        """
        from qkv.nn.scores import BUILT, CosineScore, FixedScore, LearnedScore, build_score

        if self.needs_equal_widths and query_width != key_width:
            hint = 'For different widths use "bilinear" or "additive".'
            expected = f'equal widths of query and key for "{as_flag(self.score)}"'
            raise ConfigError("score", expected, f"{query_width} and {key_width}", hint)
        if self.score in DISTANCES:
            from qkv.nn.distance_scores import KernelScore, kernel_value

            bandwidth, power = self.bandwidth, self.power
            fixed = None if bandwidth is None else FixedScore(kernel_value(self.score, bandwidth, power))
            return fixed or KernelScore(self.score, heads=heads, power=power)
        if self.score in BUILT:
            return build_score(self.score, query_width, key_width, hidden=hidden, heads=heads, key_heads=key_heads)
        match self.score:
            case "cosine":
                return CosineScore(heads=heads)
            case "nonlocal_concat":
                from qkv.nn.distance_scores import ConcatScore

                return ConcatScore(query_width, key_width, heads=heads, key_heads=key_heads)
            case "learned":
                return LearnedScore(query_width, key_width, query_width if hidden is None else hidden)
            case _:
                return FixedScore(SCORES[self.score].make())

    def normalizer_part(self, heads: int | None = None) -> "Normalizer | NormalizerModule | None":
        """Create the normalizer, with new parameters if it has any.

        Args:
            heads: H, for one set of parameters per head; None for one set.

        Returns:
            A value or a module; None for the score's own default.

        Example:
            >>> MechanismConfig(normalizer="hard").normalizer_part()
            Hard()
        """
        from qkv.nn.normalizers import LearnedEntmax, SinkSoftmax

        if self.sinks:
            return SinkSoftmax(heads)
        if self.alpha == "learned":
            return LearnedEntmax(heads)
        assert self.normalizer is not None
        if self.alpha is not None:
            return NORMALIZERS[self.normalizer].make(alpha=float(self.alpha))
        return None if self.normalizer == _default_normalizer(self.score) else NORMALIZERS[self.normalizer].make()

    def _check(self) -> None:
        if self.score == LOCATION and not self.stepwise:
            expected = "a score of queries and keys alone"
            hint = "It reads the weights of the step before: only recurrent decoders of qkv train translate have them."
            raise ConfigError("score", expected, f'"{LOCATION}"', hint)
        if self.score == _NONE and (self.normalizer != "softmax" or self.sinks):
            hint = "Choose a score, or omit what normalizes it."
            name = "sinks" if self.normalizer == "softmax" else "normalizer"
            raise ConfigError(name, "a score to normalize", f'"{_NONE}"', hint)
        if self.normalizer == "sum" and self.score not in _summable():
            others = listed([name for name in NORMALIZERS if name != "sum"], "or")
            hint = f"Sums normalize scores that are never negative: {listed(sorted(_summable()), 'and')}."
            raise ConfigError("normalizer", f"{others} for {as_flag(self.score)}", '"sum"', hint)
        self._expect_only("alpha", self.normalizer == "entmax", setting("normalizer", "entmax"), f"{self.normalizer}")
        self._expect_only("sinks", self.normalizer == "softmax", setting("normalizer", "softmax"), f"{self.normalizer}")
        self._expect_only("bandwidth", self.score in DISTANCES, setting("score", listed(DISTANCES, "or")), self.score)
        self._expect_only("power", self.score in POWERS, setting("score", listed(POWERS, "or")), self.score)

    def _expect_only(self, name: str, fits: bool, expected: str, got: str) -> None:
        if getattr(self, name) is not None and getattr(self, name) is not False and not fits:
            hint = "Omit it, or use " + expected + "."
            if name == "sinks" and self.score in KERNELS:
                hint = (
                    "Omit it, or use " + setting("score", "squared-distance") + ": its softmax is that of a Gaussian."
                )
            raise ConfigError(name, expected + " beside it", as_flag(got), hint)


def score_name(name: str, argument: str = "score") -> str:
    """Return the name of a score as in its catalog, from any spelling.

    Args:
        name: for example "Scaled-Dot", or an alias of the literature.
        argument: what a message calls it.

    Returns:
        The name; also "none" and "location", which are not in the catalog.

    Raises:
        ConfigError: it is unknown (the message suggests the closest one), or is the ambiguous "concat".

    Example:
        >>> score_name("Scaled-Dot"), score_name("bahdanau")
        ('scaled_dot', 'additive')
        >>> score_name("concat")
        Traceback (most recent call last):
        qkv.errors.ConfigError: score: expected additive or nonlocal-concat; got "concat". Luong's concat is ...
    """
    spelled = SCORES.spelled(name) or name.lower().replace("-", "_")
    if spelled in SCORES or spelled in (_NONE, LOCATION):
        return spelled
    if spelled == "concat":
        hint = (
            "Luong's concat is additive, vᵀtanh(W[q;k]); that of Non-local Networks is nonlocal-concat, relu(w·[q;k])."
        )
        raise ConfigError(argument, "additive or nonlocal-concat", '"concat"', hint)
    other = spelled in NORMALIZERS
    valid = map(as_flag, [*SCORES, *SCORES.aliases, LOCATION])
    hint = "It is a normalizer: " + setting("normalizer", name) + "." if other else nearest(as_flag(spelled), valid)
    raise ConfigError(argument, "the name of a score", repr(name), hint)


def _default_normalizer(score: str) -> str:
    return "sum" if score in SCORES and SCORES[score].cls.non_negative else "softmax"


def _normalizer(name: str) -> str:
    spelled = NORMALIZERS.spelled(name)
    if spelled is None:
        is_score = SCORES.spelled(name) is not None
        hint = "It is a score: " + setting("score", name) + "." if is_score else nearest(name.lower(), NORMALIZERS)
        raise ConfigError("normalizer", "the name of a normalizer", repr(name), hint)
    return spelled
