//! Where instances of a class keep their fields: read without asking the class.

use std::ffi::c_int;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

const RELATIVE: c_int = 8;

/// Where a Struct keeps one of its fields.
pub struct Slot {
    offset: usize,
}

impl Slot {
    /// Raises TypeError where `name` is no plain slot of `cls`.
    pub fn of(cls: &Bound<'_, PyType>, name: &Bound<'_, PyString>) -> PyResult<Slot> {
        let descriptor = cls.getattr(name)?;
        let none = || PyTypeError::new_err(format!("{name} is no field of {cls}"));
        // SAFETY: the type of the descriptor is checked before it is read as one; it is kept by its class meanwhile.
        unsafe {
            if ffi::Py_TYPE(descriptor.as_ptr()) != &raw mut ffi::PyMemberDescr_Type {
                return Err(none());
            }
            let member = &*descriptor.as_ptr().cast::<ffi::PyMemberDescrObject>();
            let is_of = ffi::PyType_IsSubtype(cls.as_type_ptr(), member.d_common.d_type) != 0;
            let definition = &*member.d_member;
            match usize::try_from(definition.offset) {
                Ok(offset) if is_of && definition.type_code == ffi::Py_T_OBJECT_EX && definition.flags & RELATIVE == 0 => Ok(Slot { offset }),
                _ => Err(none()),
            }
        }
    }

    /// What is in the slot of `subject`, borrowed from it; None where nothing is.
    ///
    /// SAFETY: `subject` is an instance of the class of this slot.
    pub unsafe fn read(&self, subject: *mut ffi::PyObject) -> Option<*mut ffi::PyObject> {
        // SAFETY: a slot of this kind is a pointer at this offset in every instance, which is what the interpreter itself reads.
        let content = unsafe { *subject.byte_add(self.offset).cast::<*mut ffi::PyObject>() };
        (!content.is_null()).then_some(content)
    }
}
