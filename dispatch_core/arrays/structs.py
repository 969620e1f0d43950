"""Structs of arrays that compiled functions pass by address.

Numba passes a ``NamedTuple`` of arrays field by field, each array as seven values: 294 for a ``State``, at every call.
Writing and dropping them, and compiling that, takes several times as long as the rules. A class marked with ``by_address``
is unpacked once, where Python calls; compiled callers pass one address on, and a function loads the fields it uses.
Interpreted runs see a plain ``NamedTuple``.

Compiled functions cannot make, change or return such a struct, and only functions that count no references take it
(``jit.compiled_in_place`` and similar): the arrays belong to the caller for as long as the call takes.
"""

from __future__ import annotations

from typing import Any, TypeVar

from llvmlite import ir
from numba import typeof, types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed, lower_getattr_generic
from numba.extending import NativeValue, models, register_model, typeof_impl, unbox
from numba.np.numpy_support import as_dtype

T = TypeVar("T", bound=type)


class ByAddress(types.NamedTuple):
    """The numba type of a marked class; its name, a part of every symbol, is short: a letter per field."""

    def __init__(self, fields: tuple[Any, ...], cls: type) -> None:
        super().__init__(fields, cls)
        self.name = f"{cls.__name__}_{''.join(_letter(cls, field) for field in fields)}"


def _letter(cls: type, field: Any) -> str:
    """Return numpy's letter for the type of an array's elements."""
    if not isinstance(field, types.Array) or field.ndim != 1 or field.layout != "C" or not field.mutable:
        raise TypeError(
            f"{cls.__name__} holds a value of type {field}; all its fields must be writable, contiguous arrays of one"
            " dimension, because compiled functions describe them in one loop"
        )
    return str(as_dtype(field.dtype).char)


def by_address(cls: T) -> T:
    """Mark a ``NamedTuple`` whose fields are writable, contiguous arrays of one dimension; others are a ``TypeError``."""

    @typeof_impl.register(cls)
    def _typeof(value: Any, _context: Any) -> ByAddress:
        return ByAddress(tuple(typeof(field) for field in value), cls)

    return cls


@register_model(ByAddress)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: ByAddress) -> None:
        arrays = [manager.lookup(field).get_value_type() for field in fe_type.types]
        super().__init__(manager, fe_type, ir.LiteralStructType(arrays).as_pointer())

    def from_argument(self, builder: Any, value: Any) -> Any:
        """Declare the address unaliased: values loaded from the struct stay valid when a function writes to an array."""
        if isinstance(value, ir.Argument):
            for attribute in ("noalias", "nonnull"):
                value.add_attribute(attribute)
        return value


@lower_getattr_generic(ByAddress)
def _field(context: Any, builder: Any, typ: ByAddress, value: Any, name: str) -> Any:
    index = typ.fields.index(name)
    loaded = builder.load(cgutils.gep_inbounds(builder, value, 0, index))
    return impl_ret_borrowed(context, builder, typ.types[index], loaded)


@unbox(ByAddress)
def _unpack(typ: ByAddress, value: Any, c: Any) -> NativeValue:
    """Describe all arrays in a struct on the stack: a loop, because all descriptions are of one size."""
    if c.context.enable_nrt:
        raise TypeError(
            f"{typ.instance_class.__name__} goes to functions that count no references: use compiled_in_place"
        )
    builder, word = c.builder, c.context.get_value_type(types.intp)
    (size,) = {c.context.get_abi_sizeof(c.context.get_value_type(field)) for field in typ.types}
    struct = cgutils.alloca_once(builder, c.context.get_value_type(typ).pointee)
    failed = cgutils.alloca_once_value(builder, cgutils.false_bit)
    raw = builder.bitcast(struct, c.pyapi.voidptr)
    getter = c.pyapi._get_function(
        ir.FunctionType(c.pyapi.pyobj, [c.pyapi.pyobj, c.pyapi.py_ssize_t]), name="PyTuple_GetItem"
    )
    with cgutils.for_range(builder, ir.Constant(word, len(typ.types))) as loop:
        at = builder.gep(raw, [builder.mul(loop.index, ir.Constant(word, size))])
        array = builder.call(getter, [value, loop.index])
        wrong = cgutils.is_not_null(builder, c.pyapi.numba_array_adaptor(array, at))
        with builder.if_then(wrong, likely=False):
            builder.store(cgutils.true_bit, failed)
    is_error = builder.load(failed)
    with builder.if_then(is_error, likely=False):
        c.pyapi.err_set_string("PyExc_TypeError", f"not a {typ.instance_class.__name__} of arrays")
    return NativeValue(struct, is_error=is_error)
