"""The exercises of the course: `check` runs an answer, and names the mistake in it.

Example:
    >>> check("attention", lambda query, key, value: (query @ key.mT).softmax(-1) @ value)
    ✗ the scores are not divided by √d
"""

from qkv.course.check import Verdict, check
from qkv.course.data import engel, novel
from qkv.course.exercises import EXERCISES

__all__ = ["EXERCISES", "Verdict", "check", "engel", "novel"]
