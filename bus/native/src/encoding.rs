//! Writing a payload as canonical JSON (RFC 8785) straight from its Struct, where every value is exactly of its annotated type.
//!
//! Never refuses: `None` says nothing, and the general way (`bus.payloads.encoding`) writes the payload or names the field. What a type looks like comes
//! from `bus.payloads.encoder_plan`. Writing runs no Python code, so that what is borrowed from a list or a Struct stays there meanwhile; a type's own code,
//! its `__post_init__`, runs after it, when what was written is decoded to be sure of it.

use std::collections::HashMap;

use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple, PyType};

use crate::canonical;
use crate::scalars::{put_integer, put_number, text_of};
use crate::slots::Slot;

/// How the values of one annotation are written.
pub enum Plan {
    Text,
    Choice(Vec<Vec<u8>>),
    Flag,
    Null,
    Integer,
    Number,
    /// Whatever JSON has a form for, as Python's own classes.
    Any,
    Optional(Box<Plan>),
    /// The first one that fits.
    Either(Vec<Plan>),
    Items(Box<Plan>),
    Row(Vec<Plan>),
    Map(Box<Plan>),
    Members(Members),
    Leaf(Leaf),
    Constant(Vec<u8>),
    Struct { cls: Py<PyType>, fields: Vec<Field> },
}

/// The texts of an Enum's members, by where they live; `all` keeps them there.
pub struct Members {
    texts: HashMap<usize, Vec<u8>>,
    all: Py<PyTuple>,
}

/// A class that msgspec writes as a string of ASCII. A time whose offset is found by somebody's own code, or is not in whole minutes, is not written here.
pub struct Leaf {
    cls: Py<PyType>,
    encode: Py<PyAny>,
    zones: Option<Py<PyType>>,
    utc: Option<Py<PyAny>>,
}

impl Leaf {
    /// SAFETY: as for `Plan::write`.
    unsafe fn write(&self, subject: *mut ffi::PyObject, out: &mut Vec<u8>) -> Option<()> {
        // SAFETY: the interpreter is attached, and `subject` lives.
        let (py, subject) = unsafe {
            let py = Python::assume_attached();
            (py, Borrowed::from_ptr(py, subject))
        };
        subject.get_type().is(&self.cls).then_some(())?;
        if let Some(zones) = &self.zones {
            let zone = subject.getattr(intern!(py, "tzinfo")).ok()?;
            if !zone.is_none() && !zone.is(self.utc.as_ref()?) {
                zone.get_type().is(zones).then_some(())?;
                // msgspec writes offsets in minutes, and rounds others.
                let offset = subject.call_method0(intern!(py, "utcoffset")).ok()?;
                let seconds: i64 = offset.getattr(intern!(py, "seconds")).ok()?.extract().ok()?;
                let micros: i64 = offset.getattr(intern!(py, "microseconds")).ok()?.extract().ok()?;
                (seconds % 60 == 0 && micros == 0).then_some(())?;
            }
        }
        let text = self.encode.bind(py).call1((subject,)).ok()?.cast_into::<PyBytes>().ok()?;
        out.extend_from_slice(text.as_bytes());
        Some(())
    }
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

/// A field: what stands before its value, and where the value is; without a slot it is the same for all.
pub struct Field {
    lead: Lead,
    slot: Option<Slot>,
    plan: Plan,
    left_out: Option<LeftOut>,
}

/// The value with which a field is not written at all: this very object, or a list or dict without anything in it.
enum LeftOut {
    Is(Py<PyAny>),
    EmptyList,
    EmptyDict,
}

impl LeftOut {
    fn read(spec: &Bound<'_, PyTuple>) -> PyResult<LeftOut> {
        match spec.get_item(0)?.extract::<String>()?.as_str() {
            "is" => Ok(LeftOut::Is(spec.get_item(1)?.unbind())),
            "list" => Ok(LeftOut::EmptyList),
            "dict" => Ok(LeftOut::EmptyDict),
            other => Err(PyValueError::new_err(format!("no such default: {other}"))),
        }
    }

    /// SAFETY: as for `Plan::write`.
    unsafe fn is(&self, content: *mut ffi::PyObject) -> bool {
        // SAFETY: the class is checked before the size is asked for.
        unsafe {
            match self {
                LeftOut::Is(object) => content == object.as_ptr(),
                LeftOut::EmptyList => ffi::PyList_CheckExact(content) != 0 && ffi::PyList_GET_SIZE(content) == 0,
                LeftOut::EmptyDict => ffi::PyDict_CheckExact(content) != 0 && ffi::PyDict_Size(content) == 0,
            }
        }
    }
}

impl Field {
    fn read(cls: &Bound<'_, PyType>, spec: &Bound<'_, PyTuple>) -> PyResult<Field> {
        // Whichever comes first has its comma made the bracket that opens the object.
        let mut lead = vec![b','];
        lead.extend_from_slice(spec.get_item(0)?.cast_into::<PyBytes>()?.as_bytes());
        lead.push(b':');
        let (name, left_out) = (spec.get_item(1)?, spec.get_item(3)?);
        Ok(Field {
            lead: Lead::of(lead),
            slot: if name.is_none() { None } else { Some(Slot::of(cls, &name.cast_into()?)?) },
            plan: Plan::read(&spec.get_item(2)?.cast_into()?)?,
            left_out: if left_out.is_none() { None } else { Some(LeftOut::read(&left_out.cast_into()?)?) },
        })
    }
}

impl Plan {
    /// The plan that `bus.payloads.encoder_plan` describes as nested tuples.
    pub fn read(spec: &Bound<'_, PyTuple>) -> PyResult<Plan> {
        let part = |at: usize| -> PyResult<Box<Plan>> { Ok(Box::new(Plan::read(&spec.get_item(at)?.cast_into()?)?)) };
        let parts = || -> PyResult<Vec<Plan>> {
            spec.get_item(1)?.cast_into::<PyTuple>()?.iter().map(|each| Plan::read(&each.cast_into()?)).collect()
        };
        Ok(match spec.get_item(0)?.extract::<String>()?.as_str() {
            "text" => Plan::Text,
            "choice" => Plan::Choice(spec.get_item(1)?.extract::<Vec<String>>()?.into_iter().map(String::into_bytes).collect()),
            "flag" => Plan::Flag,
            "null" => Plan::Null,
            "integer" => Plan::Integer,
            "number" => Plan::Number,
            "any" => Plan::Any,
            "optional" => Plan::Optional(part(1)?),
            "either" => Plan::Either(parts()?),
            "items" => Plan::Items(part(1)?),
            "row" => Plan::Row(parts()?),
            "map" => Plan::Map(part(1)?),
            "members" => Plan::Members(Members::read(spec.get_item(1)?.cast_into()?)?),
            "leaf" => {
                let zones = spec.get_item(3)?;
                Plan::Leaf(Leaf {
                    cls: spec.get_item(1)?.cast_into()?.unbind(),
                    encode: spec.get_item(2)?.unbind(),
                    utc: if zones.is_none() { None } else { Some(zones.getattr("utc")?.unbind()) },
                    zones: if zones.is_none() { None } else { Some(zones.cast_into()?.unbind()) },
                })
            }
            "constant" => Plan::Constant(spec.get_item(1)?.cast_into::<PyBytes>()?.as_bytes().to_vec()),
            "struct" => {
                let cls = spec.get_item(1)?.cast_into::<PyType>()?;
                let fields = spec.get_item(2)?.cast_into::<PyTuple>()?;
                let fields = fields.iter().map(|field| Field::read(&cls, &field.cast_into()?)).collect::<PyResult<_>>()?;
                Plan::Struct { cls: cls.unbind(), fields }
            }
            other => return Err(PyValueError::new_err(format!("no such plan: {other}"))),
        })
    }

    /// Write `subject`, of at most `room` levels, behind what is in `out`. None: it has to go the general way, and `out` holds a part of it.
    ///
    /// SAFETY: the interpreter is attached, and `subject` is a living object.
    pub unsafe fn write(&self, subject: *mut ffi::PyObject, room: usize, out: &mut Vec<u8>) -> Option<()> {
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
                Plan::Number => put_number(subject, out)?,
                Plan::Any => put_any(subject, room, out)?,
                Plan::Optional(_) if subject == ffi::Py_None() => out.extend_from_slice(b"null"),
                Plan::Optional(plan) => plan.write(subject, room, out)?,
                Plan::Either(plans) => put_either(plans, subject, room, out)?,
                Plan::Items(plan) => put_items(|_| Some(plan), subject, room, out).map(|_| ())?,
                Plan::Row(plans) => {
                    let count = put_items(|place| plans.get(place), subject, room, out)?;
                    (count == plans.len()).then_some(())?;
                }
                Plan::Map(plan) => put_map(plan, subject, room, out)?,
                Plan::Members(members) => out.extend_from_slice(members.texts.get(&subject.addr())?),
                Plan::Leaf(leaf) => leaf.write(subject, out)?,
                Plan::Constant(text) => out.extend_from_slice(text),
                Plan::Struct { cls, fields } => {
                    (ffi::Py_TYPE(subject) == cls.as_ptr().cast()).then_some(())?;
                    put_fields(fields, subject, room.checked_sub(1)?, out)?;
                }
            }
        }
        Some(())
    }
}

impl Plan {
    /// Show the collector what is held, which holds the encoder where it is the class of the payloads.
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Plan::Optional(plan) | Plan::Items(plan) | Plan::Map(plan) => plan.traverse(visit),
            Plan::Either(plans) | Plan::Row(plans) => plans.iter().try_for_each(|plan| plan.traverse(visit)),
            Plan::Members(members) => visit.call(&members.all),
            Plan::Struct { cls, fields } => {
                visit.call(cls)?;
                fields.iter().try_for_each(|field| {
                    if let Some(LeftOut::Is(value)) = &field.left_out {
                        visit.call(value)?;
                    }
                    field.plan.traverse(visit)
                })
            }
            _ => Ok(()),
        }
    }
}

impl Members {
    fn read(members: Bound<'_, PyTuple>) -> PyResult<Members> {
        let mut texts = HashMap::new();
        for entry in members.iter() {
            let entry = entry.cast_into::<PyTuple>()?;
            texts.insert(entry.get_item(0)?.as_ptr().addr(), entry.get_item(1)?.cast_into::<PyBytes>()?.as_bytes().to_vec());
        }
        Ok(Members { texts, all: members.unbind() })
    }
}

/// Writes payloads of one type as canonical data.
#[pyclass(frozen)]
pub struct Encoder {
    plan: Plan,
    /// Reads data as the type, where only that tells whether a receiver can.
    decode: Option<Py<PyAny>>,
    room: usize,
}

#[pymethods]
impl Encoder {
    /// `plan` is what `bus.payloads.encoder_plan` says of the type, `decode` raises for data that can't be of it, `room` is how deep a payload may be.
    #[new]
    fn new(plan: &Bound<'_, PyTuple>, decode: Option<Py<PyAny>>, room: usize) -> PyResult<Encoder> {
        Ok(Encoder { plan: Plan::read(plan)?, decode, room })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.decode)?;
        self.plan.traverse(&visit)
    }

    /// The canonical data of `subject`; None where it has to go the general way.
    fn encode<'py>(&self, subject: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let mut data = Vec::with_capacity(1024);
        // SAFETY: the interpreter is attached.
        if unsafe { self.write(subject.as_ptr(), &mut data) }.is_none() {
            return Ok(None);
        }
        let data = PyBytes::new(subject.py(), &data);
        Ok(self.reads(&data)?.then_some(data))
    }
}

impl Encoder {
    /// `Plan::write` of a whole payload, whose data `may_be_read` is still to be asked about.
    ///
    /// SAFETY: as there.
    pub unsafe fn write(&self, subject: *mut ffi::PyObject, out: &mut Vec<u8>) -> Option<()> {
        // SAFETY: said above.
        unsafe {
            // What has no text raises inside, which allocates: a collection would run finalizers, and with them anybody's code.
            let collects = ffi::PyGC_Disable() != 0;
            let written = self.plan.write(subject, self.room, out);
            if collects {
                ffi::PyGC_Enable();
            }
            written
        }
    }

    /// Whether receivers can read what was written. Runs the type's own code where it has any.
    pub fn may_be_read(&self, py: Python<'_>, data: &[u8]) -> PyResult<bool> {
        if self.decode.is_none() { Ok(true) } else { self.reads(&PyBytes::new(py, data)) }
    }

    fn reads(&self, data: &Bound<'_, PyBytes>) -> PyResult<bool> {
        let py = data.py();
        match self.decode.as_ref().map(|decode| decode.bind(py).call1((data,))) {
            // Not a verdict on the payload.
            Some(Err(error)) if error.is_instance_of::<PyKeyboardInterrupt>(py) => Err(error),
            Some(Err(_)) => Ok(false),
            _ => Ok(true),
        }
    }
}

/// SAFETY: as for `Plan::write`.
unsafe fn put_any(subject: *mut ffi::PyObject, room: usize, out: &mut Vec<u8>) -> Option<()> {
    // SAFETY: the classes are checked by those who are called.
    unsafe {
        if let Some(text) = text_of(subject) {
            canonical::put_string(text, out);
        } else if subject == ffi::Py_None() {
            out.extend_from_slice(b"null");
        } else if ffi::PyBool_Check(subject) != 0 {
            Plan::Flag.write(subject, room, out)?;
        } else if ffi::PyDict_CheckExact(subject) != 0 {
            put_map(&Plan::Any, subject, room, out)?;
        } else if ffi::PyList_CheckExact(subject) != 0 || ffi::PyTuple_CheckExact(subject) != 0 {
            put_items(|_| Some(&Plan::Any), subject, room, out)?;
        } else {
            put_number(subject, out)?;
        }
    }
    Some(())
}

/// SAFETY: as for `Plan::write`.
unsafe fn put_either(plans: &[Plan], subject: *mut ffi::PyObject, room: usize, out: &mut Vec<u8>) -> Option<()> {
    let start = out.len();
    for plan in plans {
        // SAFETY: said above.
        if unsafe { plan.write(subject, room, out) }.is_some() {
            return Some(());
        }
        out.truncate(start);
    }
    None
}

/// Write a list or tuple, each item as the plan of its place says; how many there are.
///
/// SAFETY: as for `Plan::write`.
unsafe fn put_items<'a>(
    plan_of: impl Fn(usize) -> Option<&'a Plan>,
    subject: *mut ffi::PyObject,
    room: usize,
    out: &mut Vec<u8>,
) -> Option<usize> {
    let room = room.checked_sub(1)?;
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
            plan_of(place as usize)?.write(item, room, out)?;
        }
        out.push(b']');
        Some(count as usize)
    }
}

/// From here on the order of UTF-8 is not always that of UTF-16.
const ABOVE_SURROGATES: u8 = 0xee;

/// SAFETY: as for `Plan::write`.
unsafe fn put_map(plan: &Plan, subject: *mut ffi::PyObject, room: usize, out: &mut Vec<u8>) -> Option<()> {
    let room = room.checked_sub(1)?;
    // SAFETY: the class is checked; nobody changes a dict meanwhile, since no Python code runs.
    unsafe {
        (ffi::PyDict_CheckExact(subject) != 0).then_some(())?;
        let mut entries: Vec<(&[u8], *mut ffi::PyObject)> = Vec::with_capacity(ffi::PyDict_Size(subject) as usize);
        let (mut place, mut key, mut content) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        while ffi::PyDict_Next(subject, &raw mut place, &raw mut key, &raw mut content) != 0 {
            let name = text_of(key)?;
            name.iter().all(|&byte| byte < ABOVE_SURROGATES).then_some(())?;
            entries.push((name, content));
        }
        entries.sort_unstable_by_key(|&(name, _)| name);
        out.push(b'{');
        for (place, (name, content)) in entries.into_iter().enumerate() {
            if place > 0 {
                out.push(b',');
            }
            canonical::put_string(name, out);
            out.push(b':');
            plan.write(content, room, out)?;
        }
        out.push(b'}');
    }
    Some(())
}

/// SAFETY: as for `Plan::write`; `subject` is an instance of the class whose fields these are.
unsafe fn put_fields(fields: &[Field], subject: *mut ffi::PyObject, room: usize, out: &mut Vec<u8>) -> Option<()> {
    let start = out.len();
    for field in fields {
        // SAFETY: said above.
        unsafe {
            let content = match &field.slot {
                Some(slot) => slot.read(subject)?,
                None => subject,
            };
            if field.left_out.as_ref().is_some_and(|value| value.is(content)) {
                continue;
            }
            field.lead.write(out);
            field.plan.write(content, room, out)?;
        }
    }
    match out.get_mut(start) {
        Some(first) => {
            *first = b'{';
            out.push(b'}');
        }
        None => out.extend_from_slice(b"{}"),
    }
    Some(())
}
