"""The function through which Python calls a kernel, as LLVM instructions: it takes arguments out of Python's objects.

It is a function of Python's stable C interface (`METH_FASTCALL`), so a call takes a fraction of a microsecond, and one
library serves every version of Python. What is in an array is read as every compiled extension of NumPy reads it, by
the layout of `PyArrayObject`, which NumPy keeps.
Each argument is checked before the kernel runs: an array of another type, or one with gaps, is a TypeError.
"""

# mypy: ignore-errors
# llvmlite and Numba's code generation have no types.

import ctypes
import sys

from llvmlite import ir

from qkv.compiled.library import NDARRAY
from qkv.errors import QkvError, UnsupportedError

NONE, ERRORS = "_Py_NoneStruct", ("PyExc_TypeError", "PyExc_RuntimeError")
_CHECKED = "qkv.checked"

_OBJECT, _BIT, _BYTE = ir.IntType(8).as_pointer(), ir.IntType(1), ir.IntType(8)
_INT, _WORD, _DOUBLE = ir.IntType(32), ir.IntType(64), ir.DoubleType()
_POINTER = ctypes.sizeof(ctypes.c_void_p)
_HEADER = object.__basicsize__
_CLASS = _HEADER - _POINTER
"""Where an object's class is, the last part of its header."""
_DATA, _NDIM, _SHAPE, _STRIDES, _DTYPE, _FLAGS = (_HEADER + place * _POINTER for place in (0, 1, 2, 3, 5, 6))
_ORDER, _NUMBER = _HEADER + _POINTER + 2, _HEADER + _POINTER + 4
"""Where a data type's byte order and its number are."""
_FOREIGN = ord(">" if sys.byteorder == "little" else "<")
_SOUND = 0x1 | 0x100 | 0x400
"""NumPy's flags of arrays that are C-contiguous, aligned and writable."""


def write_entry(module, symbol, context, described, arguments) -> None:
    """Write the function.

    Args:
        module: of llvmlite; receives it.
        symbol: the function's name.
        context: Numba's target context.
        described: Numba's description of the kernel.
        arguments: Numba's types of the kernel's arguments.

    Raises:
        UnsupportedError: a type is none that can be passed.
    """
    kind = ir.FunctionType(_OBJECT, [_OBJECT, _OBJECT.as_pointer(), _WORD])
    function = ir.Function(module, kind, symbol)
    _Entry(function, context, described).write(arguments)


class _Entry:
    """Writes the instructions one after another; failures jump to the end."""

    def __init__(self, function, context, described):
        self.module, self.context, self.described = function.module, context, described
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.refused, self.raised = (function.append_basic_block(name) for name in ("refused", "raised"))
        with self.builder.goto_block(self.refused):
            self.error, self.text = self.builder.phi(_OBJECT), self.builder.phi(_OBJECT)
            self.call("PyErr_SetString", ir.VoidType(), self.error, self.text)
            self.builder.branch(self.raised)
        with self.builder.goto_block(self.raised):
            self.builder.ret(_OBJECT(None))
        self.errors = {}

    def write(self, arguments):
        from numba.core import types

        _, objects, count = self.builder.function.args
        self.errors = {name: self.builder.load(self.known(name)) for name in ERRORS}
        expected = f"{len(arguments)} arguments"
        self.require(self.builder.icmp_signed("==", count, _WORD(len(arguments))), expected, "")
        given = [self.builder.load(self.builder.gep(objects, [_WORD(i)])) for i in range(len(arguments))]
        values = [
            self.value(kind, x, f"argument {i}") for i, (kind, x) in enumerate(zip(arguments, given, strict=True))
        ]
        state = self.call("PyEval_SaveThread", _OBJECT)
        kernel = self.context.declare_function(self.module, self.described)
        status, _ = self.context.call_conv.call_function(self.builder, kernel, types.void, arguments, values)
        self.call("PyEval_RestoreThread", ir.VoidType(), state)
        self.require(status.is_ok, "to run without an error", "", error="PyExc_RuntimeError")
        none = self.builder.bitcast(self.known(NONE), _OBJECT)
        self.call("Py_IncRef", ir.VoidType(), none)
        self.builder.ret(none)

    def value(self, kind, given, place):
        """Return a value for the kernel from an object."""
        from numba.core import types

        match kind:
            case types.Array(layout="C", aligned=True, mutable=True):
                return self.array(kind, given, place)
            case types.BaseTuple():
                return self.values(kind, given, place)
            case types.Boolean():
                truth = self.call("PyObject_IsTrue", _INT, given)
                self.unless_raised(self.builder.icmp_signed("!=", truth, _INT(-1)))
                return self.builder.icmp_signed("!=", truth, _INT(0))
            case types.Integer(bitwidth=64):
                return self.integer(given, "PyLong_AsLongLong" if kind.signed else "PyLong_AsUnsignedLongLong")
            case types.Float():
                number = self.number("PyFloat_AsDouble", _DOUBLE, given)
                return number if kind.bitwidth == 64 else self.builder.fptrunc(number, ir.FloatType())
        expected = "C-contiguous arrays, tuples of them, float32, float64, bool and integers of 64 bits"
        raise UnsupportedError("signature", expected, str(kind), f"See {place} of {self.described}.")

    def array(self, kind, given, place):
        from numba.np.arrayobj import make_array, populate_array
        from numba.np.numpy_support import as_dtype

        dtype = as_dtype(kind.dtype)
        sound = self.builder.call(self.checked(), [given, _INT(dtype.num), _INT(kind.ndim)])
        self.require(sound, f"a C-contiguous, writable array of {dtype} with {kind.ndim} dimensions", place)
        shape, strides = (self.part(given, at, _WORD.as_pointer()) for at in (_SHAPE, _STRIDES))
        result = make_array(kind)(self.context, self.builder)
        data = self.part(given, _DATA, _OBJECT)
        populate_array(
            result,
            data=self.builder.bitcast(data, result.data.type),
            shape=[self.builder.load(self.builder.gep(shape, [_WORD(i)])) for i in range(kind.ndim)],
            strides=[self.builder.load(self.builder.gep(strides, [_WORD(i)])) for i in range(kind.ndim)],
            itemsize=_WORD(dtype.itemsize),
            meminfo=None,
        )
        return result._getvalue()

    def values(self, kind, given, place):
        size = self.call("PyTuple_Size", _WORD, given)
        self.require(self.builder.icmp_signed("==", size, _WORD(len(kind))), f"a tuple of {len(kind)}", place)
        items = [self.call("PyTuple_GetItem", _OBJECT, given, _WORD(i)) for i in range(len(kind))]
        parts = [
            self.value(each, item, f"{place}[{i}]") for i, (each, item) in enumerate(zip(kind, items, strict=True))
        ]
        return self.context.make_tuple(self.builder, kind, parts)

    def integer(self, given, name):
        """Return an integer, of NumPy or Python; what has no exact integer value is a TypeError."""
        index = self.call("PyNumber_Index", _OBJECT, given)
        self.unless_raised(self.builder.icmp_unsigned("!=", index, _OBJECT(None)))
        number = self.call(name, _WORD, index)
        self.call("Py_DecRef", ir.VoidType(), index)
        self.unless_raised(self.builder.or_(self.builder.icmp_signed("!=", number, _WORD(-1)), self.calm()))
        return number

    def number(self, name, kind, given):
        number = self.call(name, kind, given)
        self.unless_raised(self.builder.or_(self.builder.fcmp_unordered("!=", number, kind(-1.0)), self.calm()))
        return number

    def calm(self):
        """Return whether no error is set."""
        return self.builder.icmp_unsigned("==", self.call("PyErr_Occurred", _OBJECT), _OBJECT(None))

    def part(self, given, at, kind):
        """Load what lies some bytes behind a pointer."""
        place = self.builder.gep(given, [_WORD(at)])
        return self.builder.load(self.builder.bitcast(place, kind.as_pointer()))

    def checked(self):
        """Return a function that tells whether an object is an array that the kernel can use."""
        name = _CHECKED
        if name in self.module.globals:
            return self.module.globals[name]
        function = ir.Function(self.module, ir.FunctionType(_BIT, [_OBJECT, _INT, _INT]), name)
        function.linkage = "internal"
        outside, self.builder = self.builder, ir.IRBuilder(function.append_basic_block("entry"))
        given, number, ndim = function.args
        array, other = function.append_basic_block("array"), function.append_basic_block("other")
        known = self.builder.load(self.known(NDARRAY))
        self.builder.cbranch(self.builder.icmp_unsigned("==", self.part(given, _CLASS, _OBJECT), known), array, other)
        self.builder.position_at_end(other)
        self.builder.ret(_BIT(0))
        self.builder.position_at_end(array)
        dtype = self.part(given, _DTYPE, _OBJECT)
        flags = self.builder.and_(self.part(given, _FLAGS, _INT), _INT(_SOUND))
        sound = self.builder.icmp_signed("==", self.part(given, _NDIM, _INT), ndim)
        for condition in (
            self.builder.icmp_signed("==", flags, _INT(_SOUND)),
            self.builder.icmp_signed("==", self.part(dtype, _NUMBER, _INT), number),
            self.builder.icmp_signed("!=", self.part(dtype, _ORDER, _BYTE), _BYTE(_FOREIGN)),
        ):
            sound = self.builder.and_(sound, condition)
        self.builder.ret(sound)
        self.builder = outside
        return function

    def require(self, condition, expected, place, error="PyExc_TypeError"):
        """Continue if a condition holds; otherwise raise an error."""
        name = ".".join(self.described.qualname.split(".")[-1:])
        message = str(QkvError(f"{name}{' ' * bool(place)}{place}", expected, "something else", "See its signature."))
        text = bytearray(message.encode() + b"\0")
        constant = ir.GlobalVariable(self.module, ir.ArrayType(_BYTE, len(text)), self.module.get_unique_name("text"))
        constant.linkage, constant.global_constant = "internal", True
        constant.initializer = ir.Constant(constant.value_type, text)
        self.error.add_incoming(self.errors[error], self.builder.block)
        self.text.add_incoming(constant.bitcast(_OBJECT), self.builder.block)
        self._go_on(condition, self.refused)

    def unless_raised(self, condition):
        """Continue if a condition holds; otherwise a function of Python has raised an error."""
        self._go_on(condition, self.raised)

    def _go_on(self, condition, otherwise):
        following = self.builder.append_basic_block()
        self.builder.cbranch(condition, following, otherwise)
        self.builder.position_at_end(following)

    def call(self, name, result, *values):
        """Call a function of Python's C interface."""
        kind = ir.FunctionType(result, [value.type for value in values])
        function = self.module.globals.get(name) or ir.Function(self.module, kind, name)
        return self.builder.call(function, values)

    def known(self, name):
        """Return a variable of Python or of the library."""
        return self.module.globals.get(name) or ir.GlobalVariable(self.module, _OBJECT, name)
