"""The labels of a published classifier, as its config.json names them."""

from collections.abc import Mapping

from qkv.hub.families.keys import SettingsReader

_MOST = 1 << 20
_ATTACH = "Other outputs run in transformers, and are recorded there: see qkv.hub.attach."


def labels_of(keys: SettingsReader) -> tuple[str, ...]:
    """Return the names of the labels, in the order of the output layer.

    Args:
        keys: its config.json: `id2label`, or `num_labels` alone, or neither, which stands for two labels.

    Raises:
        CheckpointError: the table is none of labels, or the outputs are not the scores of labels that exclude each
            other.

    Example:
        >>> labels_of(SettingsReader({"id2label": {"0": "bad", "1": "good"}}, {}, "config.json"))
        ('bad', 'good')
        >>> labels_of(SettingsReader({}, {}, "config.json"))
        ('LABEL_0', 'LABEL_1')
    """
    if keys.get("problem_type") not in (None, "single_label_classification"):
        keys.refuse("problem_type", "single_label_classification, the only one that is computed here", _ATTACH)
    table = keys.get("id2label")
    if table is None:
        count = 2 if keys.get("num_labels") is None else keys.size("num_labels", _MOST)
        table = {str(number): f"LABEL_{number}" for number in range(count)}
    if not isinstance(table, Mapping) or set(table) != {str(number) for number in range(len(table))}:
        keys.refuse("id2label", "a table from 0, 1, ... to labels")
    labels = tuple(table[str(number)] for number in range(len(table)))
    if not all(isinstance(label, str) for label in labels) or len(set(labels)) < len(labels):
        keys.refuse("id2label", "labels that are texts, all different")
    if len(labels) < 2:
        keys.refuse("id2label", "two labels or more: one output is a regression, which is not computed here", _ATTACH)
    return labels
