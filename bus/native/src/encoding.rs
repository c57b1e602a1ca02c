//! Writing a payload as canonical JSON (RFC 8785) straight from its Struct, where every value is exactly of its annotated type.
//!
//! Never refuses: `None` says nothing, and the general way (`bus.payloads`) writes the payload or names the field. What a type looks like comes
//! from `bus.plans`. Nothing here runs Python code, so that what is borrowed from a list or a Struct stays there meanwhile.

use std::ffi::c_int;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple, PyType};

use crate::canonical;

const SAFE_INTEGER: i64 = (1 << 53) - 1;
const LARGEST_NUMBER: f64 = 1e15;
const LARGEST_SHORT: f64 = 1e9;
const PLACES: usize = 4;

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

const RELATIVE: c_int = 8;

/// How the values of one annotation are written.
pub enum Plan {
    Text,
    Choice(Vec<Vec<u8>>),
    Flag,
    Null,
    Integer,
    Number,
    Optional(Box<Plan>),
    Items(Box<Plan>),
    Struct { cls: Py<PyType>, fields: Vec<Field> },
}

/// What stands before a value, in a place of fixed size where it is short: that is written without a call.
enum Lead {
    Short([u8; SHORT], usize),
    Long(Vec<u8>),
}

const SHORT: usize = 24;

impl Lead {
    fn of(text: Vec<u8>) -> Lead {
        let mut place = [0; SHORT];
        match place.get_mut(..text.len()) {
            Some(part) => {
                part.copy_from_slice(&text);
                Lead::Short(place, text.len())
            }
            None => Lead::Long(text),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Lead::Short(place, length) => {
                let end = out.len() + length;
                out.extend_from_slice(place);
                out.truncate(end);
            }
            Lead::Long(text) => out.extend_from_slice(text),
        }
    }
}

/// A field: what stands before its value, and where the value is.
pub struct Field {
    lead: Lead,
    slot: Slot,
    plan: Plan,
}

impl Plan {
    /// The plan that `bus.plans` describes as nested tuples.
    pub fn read(spec: &Bound<'_, PyTuple>) -> PyResult<Plan> {
        let part = |at: usize| -> PyResult<Box<Plan>> { Ok(Box::new(Plan::read(&spec.get_item(at)?.cast_into()?)?)) };
        match spec.get_item(0)?.extract::<String>()?.as_str() {
            "text" => Ok(Plan::Text),
            "choice" => Ok(Plan::Choice(spec.get_item(1)?.extract::<Vec<String>>()?.into_iter().map(String::into_bytes).collect())),
            "flag" => Ok(Plan::Flag),
            "null" => Ok(Plan::Null),
            "integer" => Ok(Plan::Integer),
            "number" => Ok(Plan::Number),
            "optional" => Ok(Plan::Optional(part(1)?)),
            "items" => Ok(Plan::Items(part(1)?)),
            "struct" => {
                let cls = spec.get_item(1)?.cast_into::<PyType>()?;
                let mut fields = Vec::new();
                for entry in spec.get_item(2)?.cast_into::<PyTuple>()?.iter() {
                    let entry = entry.cast_into::<PyTuple>()?;
                    let mut lead = vec![if fields.is_empty() { b'{' } else { b',' }];
                    lead.extend_from_slice(entry.get_item(0)?.cast_into::<PyBytes>()?.as_bytes());
                    lead.push(b':');
                    let slot = Slot::of(&cls, &entry.get_item(1)?.cast_into()?)?;
                    fields.push(Field { lead: Lead::of(lead), slot, plan: Plan::read(&entry.get_item(2)?.cast_into()?)? });
                }
                Ok(Plan::Struct { cls: cls.unbind(), fields })
            }
            other => Err(PyValueError::new_err(format!("no such plan: {other}"))),
        }
    }

    /// Write `subject` behind what is in `out`. None: it has to go the general way, and `out` holds a part of it.
    ///
    /// SAFETY: the interpreter is attached, and `subject` is a living object.
    pub unsafe fn write(&self, subject: *mut ffi::PyObject, out: &mut Vec<u8>) -> Option<()> {
        // SAFETY: each access below is that of the class which was checked right before, and what is borrowed is held by `subject`.
        unsafe {
            match self {
                Plan::Text => canonical::put_string(text_of(subject)?, out),
                Plan::Choice(texts) => {
                    let text = text_of(subject)?;
                    texts.iter().any(|choice| choice == text).then_some(())?;
                    canonical::put_string(text, out);
                }
                Plan::Flag if subject == ffi::Py_True() => out.extend_from_slice(b"true"),
                Plan::Flag if subject == ffi::Py_False() => out.extend_from_slice(b"false"),
                Plan::Null if subject == ffi::Py_None() => out.extend_from_slice(b"null"),
                Plan::Flag | Plan::Null => return None,
                Plan::Integer => put_integer(subject, out)?,
                Plan::Number if ffi::PyFloat_CheckExact(subject) != 0 => {
                    let number = ffi::PyFloat_AS_DOUBLE(subject);
                    // Also false for what is no number.
                    (number.abs() < LARGEST_NUMBER).then_some(())?;
                    if put_short_fraction(number, out) {
                        return Some(());
                    }
                    out.extend_from_slice(ryu_js::Buffer::new().format_finite(number).as_bytes());
                }
                Plan::Number => put_integer(subject, out)?,
                Plan::Optional(_) if subject == ffi::Py_None() => out.extend_from_slice(b"null"),
                Plan::Optional(plan) => plan.write(subject, out)?,
                Plan::Items(plan) => put_items(plan, subject, out)?,
                Plan::Struct { cls, fields } => {
                    (ffi::Py_TYPE(subject) == cls.as_ptr().cast()).then_some(())?;
                    for field in fields {
                        field.lead.write(out);
                        field.plan.write(field.slot.read(subject)?, out)?;
                    }
                    out.extend_from_slice(if fields.is_empty() { b"{}" } else { b"}" });
                }
            }
        }
        Some(())
    }
}

/// The UTF-8 of a str, which keeps it; None for any other object and for a text that has none.
///
/// SAFETY: as for `Plan::write`.
pub unsafe fn text_of<'a>(subject: *mut ffi::PyObject) -> Option<&'a [u8]> {
    // SAFETY: the class is checked; the bytes live as long as the str.
    unsafe {
        (ffi::PyUnicode_CheckExact(subject) != 0).then_some(())?;
        let mut length = 0;
        let start = ffi::PyUnicode_AsUTF8AndSize(subject, &raw mut length);
        if start.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(std::slice::from_raw_parts(start.cast(), length as usize))
    }
}

/// Write a number of at most four decimals, if it is one; whether it is.
///
/// A quotient of integers below 2^53 is the double next to it, so that the decimal is a text of the number where the quotient is the number; and
/// two decimals of at most 15 digits are never the same double, so that there is no shorter one.
fn put_short_fraction(number: f64, out: &mut Vec<u8>) -> bool {
    let size = number.abs();
    if size >= LARGEST_SHORT {
        return false;
    }
    let mut power = 10_u64;
    for places in 1..=PLACES {
        let shifted = (size * power as f64 + 0.5) as u64;
        if shifted as f64 / power as f64 == size && shifted % 10 > 0 {
            if number < 0.0 {
                out.push(b'-');
            }
            put_digits(shifted / power, out);
            out.push(b'.');
            let mut digits = [b'0'; PLACES];
            let mut rest = shifted % power;
            for place in (0..places).rev() {
                digits[place] = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
            out.extend_from_slice(&digits[..places]);
            return true;
        }
        power *= 10;
    }
    false
}

fn put_digits(number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// SAFETY: as for `Plan::write`.
unsafe fn put_integer(subject: *mut ffi::PyObject, out: &mut Vec<u8>) -> Option<()> {
    let mut overflow = 0;
    // SAFETY: the class is checked, so that no __index__ of somebody's is called.
    let number = unsafe {
        (ffi::PyLong_CheckExact(subject) != 0).then_some(())?;
        ffi::PyLong_AsLongLongAndOverflow(subject, &raw mut overflow)
    };
    (overflow == 0 && (-SAFE_INTEGER..=SAFE_INTEGER).contains(&number)).then_some(())?;
    if number < 0 {
        out.push(b'-');
    }
    put_digits(number.unsigned_abs(), out);
    Some(())
}

/// SAFETY: as for `Plan::write`.
unsafe fn put_items(plan: &Plan, subject: *mut ffi::PyObject, out: &mut Vec<u8>) -> Option<()> {
    // SAFETY: the class is checked; nobody changes a list meanwhile, since no Python code runs.
    unsafe {
        let is_list = ffi::PyList_CheckExact(subject) != 0;
        (is_list || ffi::PyTuple_CheckExact(subject) != 0).then_some(())?;
        let count = if is_list { ffi::PyList_GET_SIZE(subject) } else { ffi::PyTuple_GET_SIZE(subject) };
        out.push(b'[');
        for place in 0..count {
            if place > 0 {
                out.push(b',');
            }
            let item = if is_list { ffi::PyList_GET_ITEM(subject, place) } else { ffi::PyTuple_GET_ITEM(subject, place) };
            plan.write(item, out)?;
        }
        out.push(b']');
    }
    Some(())
}
