"""The normalizers that backends know by name; of a user-defined one only the equation is known."""

from qkv.errors import ConfigError, UnsupportedError, value_named
from qkv.normalizers.base import Normalizer
from qkv.normalizers.catalog import NORMALIZERS
from qkv.values.parameters import Owner
from qkv.values.plain_modules import is_watched

KINDS = {entry.cls: name for name, entry in NORMALIZERS.items()}
KNOWN = frozenset(KINDS.values())
MERGEABLE = tuple(name for kind, name in KINDS.items() if kind.mergeable)
"""The normalizers whose results over disjoint sets of keys can be merged."""

BLURRED = (
    "a kernel is between 0 and 1, so that a softmax gives no key more than e times the weight of another. Omit the "
    "normalizer to divide by the sum; for a softmax of a Gaussian's exponents, also with a sink or a bias, use the "
    "score squared-distance."
)
"""What a softmax of a kernel does, and what to use instead."""


def kind_of(normalizer: Normalizer) -> str:
    """Return the name of a normalizer; that of a user-defined one is in no backend's table, whatever its class name is.

    Example:
        >>> class Softmax(Normalizer):
        ...     def __call__(self, scores, visible=None):
        ...         return scores
        >>> from qkv.normalizers.dense import Hard
        >>> kind_of(Hard()), kind_of(Softmax())
        ('hard', 'user-defined Softmax')
    """
    return KINDS.get(type(normalizer)) or f"user-defined {type(normalizer).__name__}"


def optional_normalizer(normalizer: object) -> Normalizer | None:
    """Check that a value is a normalizer or a module that builds one; None stands for the default of a score.

    Example:
        >>> optional_normalizer(None) is None
        True
    """
    return None if normalizer is None else as_normalizer(normalizer)


def as_normalizer(normalizer: object) -> Normalizer:
    """Check that a value is a normalizer.

    Raises:
        ConfigError: it is not.

    Example:
        >>> from qkv.normalizers.dense import Hard
        >>> as_normalizer(Hard)
        Traceback (most recent call last):
        qkv.errors.ConfigError: normalizer: expected a value of qkv.normalizers; got the class Hard. Use Hard().
    """
    if isinstance(normalizer, Owner):
        if is_watched(normalizer):  # type: ignore[arg-type]
            hint = "Put the hook on the attention, which returns its output, or on the score."
            got = f"{type(normalizer).__name__} with hooks or another forward"
            raise UnsupportedError("normalizer", "a module whose parameters are read", got, hint)
        normalizer = normalizer.value()
    if isinstance(normalizer, Normalizer):
        return normalizer
    got, hint = repr(normalizer), "Example: qkv.normalizers.Sparsemax()."
    if isinstance(normalizer, type):
        got, hint = f"the class {normalizer.__name__}", f"Use {normalizer.__name__}()."
    elif (named := value_named(normalizer, "qkv.normalizers", [kind.__name__ for kind in KINDS])) is not None:
        hint = named
    elif callable(normalizer):
        hint = "Make it a class: derive from qkv.normalizers.Normalizer, with __call__(scores, visible=None)."
    raise ConfigError("normalizer", "a value of qkv.normalizers", got, hint)
