//! Kafka's record batches, version 2 (KIP-98): the records in one, and the keys' partitions.

use std::cell::RefCell;
use std::ffi::c_int;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyImportError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyString, PyTuple, PyType};

use crate::slots::Slot;

fn put_varint(out: &mut Vec<u8>, number: i64) {
    let mut zigzag = ((number << 1) ^ (number >> 63)) as u64;
    while zigzag >= 0x80 {
        out.push(zigzag as u8 | 0x80);
        zigzag >>= 7;
    }
    out.push(zigzag as u8);
}

fn varint_length(number: i64) -> usize {
    let zigzag = ((number << 1) ^ (number >> 63)) as u64;
    (64 - (zigzag | 1).leading_zeros() as usize).div_ceil(7)
}

fn put_bytes(out: &mut Vec<u8>, content: Option<&[u8]>) {
    match content {
        Some(content) => {
            put_varint(out, content.len() as i64);
            out.extend_from_slice(content);
        }
        None => put_varint(out, -1),
    }
}

fn bytes_length(content: Option<&[u8]>) -> usize {
    content.map_or(1, |content| varint_length(content.len() as i64) + content.len())
}

fn bytes_of<'a>(content: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a [u8]>> {
    Ok(if content.is_none() { None } else { Some(content.cast::<PyBytes>()?.as_bytes()) })
}

/// Where a NewRecord keeps its fields.
struct Shape {
    cls: Py<PyType>,
    topic: Slot,
    key: Slot,
    value: Slot,
    headers: Slot,
    partition: Slot,
}

static SHAPE: PyOnceLock<Shape> = PyOnceLock::new();

/// The name of our package `bus`: `bus` in a checkout, `sealbus.bus` installed from a wheel.
static BUS: PyOnceLock<String> = PyOnceLock::new();

/// Learn from the name of this `module` what its neighbours are called.
pub fn find_neighbours(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let name = module.name()?.to_string();
    let bus = name.strip_suffix(".native._core").ok_or_else(|| PyImportError::new_err(format!("no place for it: {name}")))?;
    BUS.get_or_init(module.py(), || bus.to_owned());
    Ok(())
}

impl Shape {
    fn get(py: Python<'_>) -> PyResult<&Shape> {
        SHAPE.get_or_try_init(py, || {
            let bus = BUS.get(py).ok_or_else(|| PyImportError::new_err("used before it was imported"))?;
            let cls = &py.import(format!("{bus}.transports.base"))?.getattr("NewRecord")?.cast_into::<PyType>()?;
            let slot = |name: &str| Slot::of(cls, &PyString::new(py, name));
            Ok(Shape {
                cls: cls.clone().unbind(),
                topic: slot("topic")?,
                key: slot("key")?,
                value: slot("value")?,
                headers: slot("headers")?,
                partition: slot("partition")?,
            })
        })
    }

    fn field<'py>(&self, record: &Bound<'py, PyAny>, slot: &Slot) -> PyResult<Bound<'py, PyAny>> {
        if record.get_type_ptr() != self.cls.as_ptr().cast() {
            return Err(PyTypeError::new_err("no NewRecord"));
        }
        // SAFETY: the slot is of this very class; what is in it gets a reference of its own.
        unsafe { slot.read(record.as_ptr()).map(|content| Bound::from_borrowed_ptr(record.py(), content)) }
            .ok_or_else(|| PyTypeError::new_err("a NewRecord without a field"))
    }
}

thread_local! {
    /// Kept from batch to batch: a quarter of a megabyte anew each time costs more in page faults than the writing.
    static SECTION: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

const MOST_KEPT: usize = 4 << 20;

/// The records section of a batch, to be read by whoever compresses it.
#[pyclass(frozen)]
pub struct Section {
    data: Vec<u8>,
}

#[pymethods]
impl Section {
    fn __len__(&self) -> usize {
        self.data.len()
    }

    /// SAFETY: the interpreter gives a `view` that may be written; what it shows is never changed, and kept by this object.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let data = &slf.get().data;
        // SAFETY: as above; it is said to be read-only.
        let failed = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data.as_ptr().cast_mut().cast(), data.len() as ffi::Py_ssize_t, 1, flags) };
        if failed == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        if self.data.capacity() <= MOST_KEPT {
            // Where the thread ends there is nothing to keep it for.
            let _ = SECTION.try_with(|kept| kept.replace(std::mem::take(&mut self.data)));
        }
    }
}

/// The records section of a batch, uncompressed: each of `records` (with `key`, `value` and `headers`) at the batch's own time.
#[pyfunction]
pub fn write_records(py: Python<'_>, records: &Bound<'_, PyList>) -> PyResult<Section> {
    let mut section = Section { data: SECTION.take() };
    section.data.clear();
    put_records(py, records, &mut section.data)?;
    Ok(section)
}

fn put_records<'py>(py: Python<'py>, records: &Bound<'py, PyList>, out: &mut Vec<u8>) -> PyResult<()> {
    let shape = Shape::get(py)?;
    let mut pairs: Vec<(Bound<'py, PyString>, Bound<'py, PyBytes>)> = Vec::with_capacity(8);
    for (place, record) in records.iter().enumerate() {
        let (key, value) = (shape.field(&record, &shape.key)?, shape.field(&record, &shape.value)?);
        let headers = shape.field(&record, &shape.headers)?;
        let (key, value) = (bytes_of(&key)?, bytes_of(&value)?);
        pairs.clear();
        for header in headers.cast::<PyTuple>()?.iter_borrowed() {
            let header = header.cast::<PyTuple>()?;
            pairs.push((header.get_item(0)?.cast_into()?, header.get_item(1)?.cast_into()?));
        }
        let mut length = 2 + varint_length(place as i64) + bytes_length(key) + bytes_length(value) + varint_length(pairs.len() as i64);
        for (name, content) in &pairs {
            length += bytes_length(Some(name.to_str()?.as_bytes())) + bytes_length(Some(content.as_bytes()));
        }
        put_varint(out, length as i64);
        out.extend_from_slice(&[0, 0]);
        put_varint(out, place as i64);
        put_bytes(out, key);
        put_bytes(out, value);
        put_varint(out, pairs.len() as i64);
        for (name, content) in &pairs {
            put_bytes(out, Some(name.to_str()?.as_bytes()));
            put_bytes(out, Some(content.as_bytes()));
        }
    }
    Ok(())
}

const CRC_AT: usize = 17;

/// A whole batch around its records section; `attributes` name the codec. Offsets begin at 0: the broker sets them.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn write_batch<'py>(
    py: Python<'py>,
    section: &[u8],
    count: i32,
    attributes: i16,
    timestamp_ms: i64,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
) -> Bound<'py, PyBytes> {
    let mut out = Vec::with_capacity(61 + section.len());
    out.extend_from_slice(&0_i64.to_be_bytes());
    out.extend_from_slice(&((49 + section.len()) as i32).to_be_bytes());
    out.extend_from_slice(&(-1_i32).to_be_bytes());
    out.push(2);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&attributes.to_be_bytes());
    out.extend_from_slice(&(count - 1).to_be_bytes());
    out.extend_from_slice(&timestamp_ms.to_be_bytes());
    out.extend_from_slice(&timestamp_ms.to_be_bytes());
    out.extend_from_slice(&producer_id.to_be_bytes());
    out.extend_from_slice(&producer_epoch.to_be_bytes());
    out.extend_from_slice(&base_sequence.to_be_bytes());
    out.extend_from_slice(&count.to_be_bytes());
    out.extend_from_slice(section);
    let crc = crc32c::crc32c(&out[CRC_AT + 4..]);
    out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_be_bytes());
    PyBytes::new(py, &out)
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.data.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<i64> {
        let (mut number, mut shift) = (0_u64, 0);
        loop {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some((number >> 1) as i64 ^ -((number & 1) as i64));
            }
            shift += 7;
        }
    }

    /// None inside: null.
    fn bytes(&mut self) -> Option<Option<&'a [u8]>> {
        let length = self.varint()?;
        if length < 0 {
            return Some(None);
        }
        let end = self.at.checked_add(usize::try_from(length).ok()?)?;
        let content = self.data.get(self.at..end)?;
        self.at = end;
        Some(Some(content))
    }
}

/// The records of the first `length` bytes of an uncompressed section as `kind(topic, partition, offset, timestamp_ms, key, value, headers)`.
///
/// `append_ms` is the time of all of them where the log has set it, else None. Raises ValueError where they cannot be read.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn read_records<'py>(
    py: Python<'py>,
    section: PyBuffer<u8>,
    length: usize,
    count: usize,
    kind: &Bound<'py, PyAny>,
    topic: &Bound<'py, PyString>,
    partition: i64,
    base_offset: i64,
    base_ms: i64,
    append_ms: Option<i64>,
    names: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyList>> {
    let found = PyList::empty(py);
    if !section.is_c_contiguous() || length > section.len_bytes() {
        return Err(PyValueError::new_err("no such section"));
    }
    // SAFETY: the buffer is contiguous and kept by `section`; nobody writes into it while this thread holds the interpreter, and no
    // Python code runs before the last record is copied but the constructor of `kind`, which knows nothing of it.
    let section = unsafe { std::slice::from_raw_parts(section.buf_ptr().cast::<u8>(), length) };
    let mut reader = Reader { data: section, at: 0 };
    // Where a header is that of the record before, as most are but the one with the id, it is the same object.
    let mut before: Vec<(&[u8], &[u8], Bound<'py, PyTuple>)> = Vec::new();
    let broken = || PyValueError::new_err("the records of a batch cannot be read");
    let partition = partition.into_pyobject(py)?;
    for _ in 0..count {
        let length = reader.varint().ok_or_else(broken)?;
        let end = usize::try_from(length).ok().and_then(|length| reader.at.checked_add(length)).ok_or_else(broken)?;
        reader.byte().ok_or_else(broken)?;
        let delta_ms = reader.varint().ok_or_else(broken)?;
        let offset = base_offset.wrapping_add(reader.varint().ok_or_else(broken)?);
        let key = reader.bytes().ok_or_else(broken)?;
        let value = reader.bytes().ok_or_else(broken)?;
        let many = usize::try_from(reader.varint().ok_or_else(broken)?).map_err(|_| broken())?;
        if many > MOST_HEADERS {
            return Err(broken());
        }
        for at in 0..many {
            let name = reader.bytes().ok_or_else(broken)?.unwrap_or_default();
            let content = reader.bytes().ok_or_else(broken)?.unwrap_or_default();
            if at >= KEPT_HEADERS {
                continue;
            }
            if before.get(at).is_some_and(|known| known.0 == name && known.1 == content) {
                continue;
            }
            let header = PyTuple::new(py, [header_name(py, names, name)?.into_any(), PyBytes::new(py, content).into_any()])?;
            untrack(&header);
            before.truncate(at);
            before.push((name, content, header));
        }
        before.truncate(many);
        let headers = PyTuple::new(py, before.iter().map(|(_, _, header)| header))?;
        untrack(&headers);
        if reader.at != end {
            return Err(broken());
        }
        let moment = append_ms.unwrap_or_else(|| base_ms.wrapping_add(delta_ms));
        let given = |content: Option<&[u8]>| match content {
            Some(content) => PyBytes::new(py, content).into_any(),
            None => py.None().into_bound(py),
        };
        found.append(kind.call1((topic, &partition, offset, moment, given(key), given(value), headers))?)?;
    }
    if reader.at == section.len() { Ok(found) } else { Err(broken()) }
}

/// Tell the garbage collector that a tuple of texts and bytes, or of such tuples, is no part of any cycle, which it would find out itself.
pub fn untrack(tuple: &Bound<'_, PyTuple>) {
    // SAFETY: a new tuple is tracked, and nothing else is done with it here.
    unsafe { pyo3::ffi::PyObject_GC_UnTrack(tuple.as_ptr().cast()) };
}

/// As many as a record of the bus never has: each takes memory many times its two bytes in a batch.
const MOST_HEADERS: usize = 10_000;
/// Those behind are left out: a message with so many is refused, whatever they say.
const KEPT_HEADERS: usize = 256;
const MOST_NAMES: usize = 64;
const MOST_NAME_BYTES: usize = 128;

/// The text of a header's name; the few that there are, are made once.
fn header_name<'py>(py: Python<'py>, names: &Bound<'py, PyDict>, name: &[u8]) -> PyResult<Bound<'py, PyString>> {
    let key = PyBytes::new(py, name);
    if let Some(known) = names.get_item(&key)? {
        return Ok(known.cast_into::<PyString>()?);
    }
    let text = PyString::new(py, &String::from_utf8_lossy(name));
    if names.len() < MOST_NAMES && name.len() <= MOST_NAME_BYTES {
        names.set_item(key, &text)?;
    }
    Ok(text)
}

/// Kafka's murmur2 of a key, as its Java client computes it.
fn hash_of(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ key.len() as u32;
    let mut fours = key.chunks_exact(4);
    for four in &mut fours {
        let mut part = u32::from_le_bytes([four[0], four[1], four[2], four[3]]).wrapping_mul(M);
        part ^= part >> 24;
        hash = hash.wrapping_mul(M) ^ part.wrapping_mul(M);
    }
    let rest = fours.remainder();
    if !rest.is_empty() {
        for (place, &byte) in rest.iter().enumerate() {
            hash ^= u32::from(byte) << (8 * place);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// The murmur2 of each of `keys`.
#[pyfunction]
pub fn murmur2_many(keys: Vec<Bound<'_, PyBytes>>) -> Vec<u32> {
    keys.iter().map(|key| hash_of(key.as_bytes())).collect()
}

const RECORD_OVERHEAD: usize = 40;
const HEADER_OVERHEAD: usize = 10;

/// The records of one partition, their places among all, and what each takes in a batch at most.
type Place<'py> = (Bound<'py, PyList>, Bound<'py, PyList>, Bound<'py, PyList>);

/// `records`, all for one topic of so many partitions, by partition: a dict in the order of first use. None where one of them names its
/// partition, has no key, is of another topic, or takes more than `largest` bytes at most: those are looked at one by one.
#[pyfunction]
pub fn distribute<'py>(py: Python<'py>, records: &Bound<'py, PyList>, partitions: u32, largest: usize) -> PyResult<Option<Bound<'py, PyDict>>> {
    let places = PyDict::new(py);
    let Some(first) = records.iter().next() else { return Ok(Some(places)) };
    let shape = Shape::get(py)?;
    let topic = shape.field(&first, &shape.topic)?;
    let mut by_number: Vec<Option<Place<'py>>> = (0..partitions).map(|_| None).collect();
    for (index, record) in records.iter().enumerate() {
        let (key, size) = (shape.field(&record, &shape.key)?, size_of(shape, &record)?);
        let named = !shape.field(&record, &shape.partition)?.is_none();
        let other = shape.field(&record, &shape.topic)?;
        if named || size > largest || key.is_none() || !(other.is(&topic) || other.eq(&topic)?) {
            return Ok(None);
        }
        let number = (hash_of(key.cast::<PyBytes>()?.as_bytes()) & 0x7fff_ffff) % partitions;
        let place = &mut by_number[number as usize];
        if place.is_none() {
            let found = (PyList::empty(py), PyList::empty(py), PyList::empty(py));
            places.set_item(number, (&found.0, &found.1, &found.2))?;
            *place = Some(found);
        }
        if let Some((mine, indices, sizes)) = place {
            mine.append(record)?;
            indices.append(PyInt::new(py, index))?;
            sizes.append(PyInt::new(py, size))?;
        }
    }
    Ok(Some(places))
}

fn size_of(shape: &Shape, record: &Bound<'_, PyAny>) -> PyResult<usize> {
    let (key, value) = (shape.field(record, &shape.key)?, shape.field(record, &shape.value)?);
    let mut size = RECORD_OVERHEAD + bytes_of(&key)?.map_or(0, <[u8]>::len) + bytes_of(&value)?.map_or(0, <[u8]>::len);
    for header in shape.field(record, &shape.headers)?.cast::<PyTuple>()?.iter_borrowed() {
        let header = header.cast::<PyTuple>()?;
        let name = header.get_borrowed_item(0)?;
        let content = header.get_borrowed_item(1)?;
        size += HEADER_OVERHEAD + name.cast::<PyString>()?.to_str()?.len() + content.cast::<PyBytes>()?.as_bytes().len();
    }
    Ok(size)
}

/// An upper bound of what each of `records` takes in a batch.
#[pyfunction]
pub fn record_sizes(py: Python<'_>, records: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<usize>> {
    let shape = Shape::get(py)?;
    records.iter().map(|record| size_of(shape, record)).collect()
}
