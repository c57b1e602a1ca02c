//! Proving a plain message by its layout, what `bus.protocol.fast_parse` does, in one pass: from a record's value to the message.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple, PyType};

use crate::canonical;
use crate::counts;
use crate::sealing::{
    END, FRONT, HASH_LENGTH, HEAD, MAX_TEXT, TO_CONTENT, TO_EXPIRY, TO_ID, TO_IDEMPOTENCY, TO_KEY, TO_SEAL, TO_TIME, ascii, hash,
    is_plain_text, parse_ms,
};

const TIME_LENGTH: usize = 24;
const CLOSING_LENGTH: usize = TO_CONTENT.len() + HASH_LENGTH + TO_SEAL.len() + HASH_LENGTH + END.len();
const LONGEST_TAIL: usize = 4_096;
const MAX_ID: usize = 128;

/// The slots of a plain message and what stands between them, as `bus.protocol.fast_parse` describes it.
struct Parts<'a> {
    data: &'a [u8],
    tail: &'a [u8],
    conversation_id: &'a [u8],
    message_id: &'a [u8],
    middle: &'a [u8],
    timestamp: &'a [u8],
    expires_at: &'a [u8],
    idempotency_key: Option<&'a [u8]>,
    key: Option<&'a [u8]>,
    rest: &'a [u8],
    closing: &'a [u8],
}

fn find(text: &[u8], wanted: &[u8], from: usize) -> Option<usize> {
    let first = wanted[0];
    let mut at = from;
    while at + wanted.len() <= text.len() {
        at += text[at..].iter().position(|&byte| byte == first)?;
        if text[at..].starts_with(wanted) {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// `likely` is how long the tail of the message before was, `likely_middle` what its layout has in the middle. Where the data end is only a guess in either case: it is right when what is before
/// it proves to be one object, and what is behind it to be the whole of a layout.
fn take_apart<'a>(value: &'a [u8], likely: usize, likely_middle: Option<&[u8]>) -> Option<Parts<'a>> {
    // A message with a cause, or signed, has another end: it is not searched.
    let closing = value.len().checked_sub(CLOSING_LENGTH)?;
    if !value.starts_with(FRONT) || !value[closing..].starts_with(TO_CONTENT) {
        return None;
    }
    let from = value.len().saturating_sub(LONGEST_TAIL).max(FRONT.len());
    let data_end = match value.len().checked_sub(likely) {
        Some(place) if place >= from && value[place..].starts_with(HEAD) => place,
        _ => from + value[from..].windows(HEAD.len()).rposition(|window| window[0] == b',' && window == HEAD)?,
    };
    let tail = &value[data_end..];
    let quote = |start: usize| Some(start + tail.get(start..)?.iter().position(|&byte| byte == b'"')?);
    let mut at = quote(HEAD.len())?;
    let conversation_id = &tail[HEAD.len()..at];
    if !tail[at..].starts_with(TO_ID) {
        return None;
    }
    let mut start = at + TO_ID.len();
    at = quote(start)?;
    let message_id = &tail[start..at];
    let begin = at + 1;
    let stamp = match likely_middle {
        // It holds no second one: it ended at the first when it was found.
        Some(middle) if tail[begin..].starts_with(middle) && tail[begin + middle.len()..].starts_with(TO_TIME) => begin + middle.len(),
        _ => find(tail, TO_TIME, at)?,
    };
    let middle = tail.get(begin..stamp)?;
    start = stamp + TO_TIME.len();
    at = start + TIME_LENGTH;
    let timestamp = tail.get(start..at)?;
    if !tail[at..].starts_with(TO_EXPIRY) {
        return None;
    }
    start = at + TO_EXPIRY.len();
    at = start + TIME_LENGTH;
    let expires_at = tail.get(start..at)?;
    let mut optional = |name: &[u8]| -> Option<Option<&[u8]>> {
        if !tail.get(at..)?.starts_with(name) {
            return Some(None);
        }
        start = at + name.len();
        at = quote(start)?;
        Some(Some(&tail[start..at]))
    };
    let idempotency_key = optional(TO_IDEMPOTENCY)?;
    let key = optional(TO_KEY)?;
    let closing = tail.len().checked_sub(CLOSING_LENGTH)?;
    if at >= closing || !tail[closing..].starts_with(TO_CONTENT) {
        return None;
    }
    Some(Parts {
        data: &value[FRONT.len()..data_end],
        tail,
        conversation_id,
        message_id,
        middle,
        timestamp,
        expires_at,
        idempotency_key,
        key,
        rest: &tail[at..closing],
        closing: &tail[closing..],
    })
}

/// What a plain message shares with others of its layout; None where it is no text.
fn shared_by<'py>(py: Python<'py>, parts: &Parts<'_>) -> Option<Bound<'py, PyString>> {
    let mut shared = Vec::with_capacity(parts.middle.len() + parts.rest.len() + 1);
    shared.extend_from_slice(parts.middle);
    shared.push(0);
    shared.extend_from_slice(parts.rest);
    std::str::from_utf8(&shared).ok().map(|text| PyString::new(py, text))
}

/// What a layout is found by and what it says, as it was last used: nearly always it is the next message's, too.
struct LastLayout {
    middle: Vec<u8>,
    rest: Vec<u8>,
    stated: Vec<u8>,
    stated_end: Vec<u8>,
    metadata: Py<PyAny>,
    routing: Py<PyAny>,
    known: Py<PyAny>,
    read: Py<PyAny>,
    short: Option<ShortReader>,
    message_type: Py<PyAny>,
}

/// Reads payloads of at most `max_bytes` in place of `read`; with `checks_integers`, only those without long integers.
struct ShortReader {
    decode: Py<PyAny>,
    max_bytes: usize,
    checks_integers: bool,
}

impl ShortReader {
    fn of(codec: &Bound<'_, PyAny>) -> PyResult<Option<ShortReader>> {
        let found = match codec.getattr_opt(intern!(codec.py(), "short"))? {
            Some(found) if !found.is_none() => found.cast_into::<PyTuple>()?,
            _ => return Ok(None),
        };
        let (decode, max_bytes, checks_integers) = (found.get_item(0)?.unbind(), found.get_item(1)?.extract()?, found.get_item(2)?.extract()?);
        Ok(Some(ShortReader { decode, max_bytes, checks_integers }))
    }
}

impl LastLayout {
    fn of(layout: &Bound<'_, PyAny>, parts: &Parts<'_>) -> PyResult<LastLayout> {
        let py = layout.py();
        let stated = layout.getattr(intern!(py, "stated_bytes"))?.cast_into::<PyTuple>()?;
        let codec = layout.getattr(intern!(py, "kind"))?;
        Ok(LastLayout {
            middle: parts.middle.to_vec(),
            rest: parts.rest.to_vec(),
            stated: stated.get_item(0)?.cast_into::<PyBytes>()?.as_bytes().to_vec(),
            stated_end: stated.get_item(1)?.cast_into::<PyBytes>()?.as_bytes().to_vec(),
            metadata: layout.getattr(intern!(py, "metadata"))?.unbind(),
            routing: layout.getattr(intern!(py, "routing"))?.unbind(),
            known: layout.getattr(intern!(py, "known"))?.unbind(),
            read: codec.getattr(intern!(py, "read"))?.unbind(),
            short: ShortReader::of(&codec)?,
            message_type: layout.getattr(intern!(py, "metadata"))?.getattr(intern!(py, "message_type"))?.unbind(),
        })
    }

    /// The payload in canonical `data`; None is no verdict.
    fn payload<'py>(&self, py: Python<'py>, data: Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyAny>> {
        let bytes = data.as_bytes();
        match &self.short {
            Some(short) if bytes.len() <= short.max_bytes && !(short.checks_integers && counts::has_long_integer(bytes)) => {
                match short.decode.bind(py).call1((data,)) {
                    Err(error) if !error.is_instance_of::<PyKeyboardInterrupt>(py) => Ok(py.None().into_bound(py)),
                    decided => decided,
                }
            }
            _ => self.read.bind(py).call1((data,)),
        }
    }
}

/// What messages are made with: the classes, and the function that gives a Struct other values in some of its fields.
struct Making {
    cast: Py<PyType>,
    message: Py<PyType>,
    verification: Py<PyType>,
    replace: Py<PyAny>,
    metadata_names: Py<PyTuple>,
    routing_names: Py<PyTuple>,
    verification_names: Py<PyTuple>,
}

/// `callable(*arguments)`, where `names` are those of the last arguments; without a dict in between.
fn called<'py, const N: usize>(
    callable: &Bound<'py, PyAny>,
    names: &Bound<'py, PyTuple>,
    arguments: [&Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyAny>> {
    let pointers = arguments.map(Bound::as_ptr);
    // SAFETY: the arguments are kept by the caller, and no fewer than the names.
    unsafe {
        let made = ffi::PyObject_Vectorcall(callable.as_ptr(), pointers.as_ptr(), N - names.len(), names.as_ptr());
        Bound::from_owned_ptr_or_err(callable.py(), made)
    }
}

/// Casts messages in layouts.
#[pyclass]
pub struct Caster {
    making: Making,
    is_canonical: Py<PyAny>,
    last: Option<LastLayout>,
    tail_length: usize,
    limits: Limits,
}

#[pymethods]
impl Caster {
    /// Makes `cast`s of `message`s with a `verification`; `is_canonical` decides for data that are not proven canonical here, `limits` are
    /// those of the gates that `judge` asks.
    #[new]
    fn new(
        py: Python<'_>,
        cast: Bound<'_, PyType>,
        message: Bound<'_, PyType>,
        verification: Bound<'_, PyType>,
        replace: Bound<'_, PyAny>,
        is_canonical: Bound<'_, PyAny>,
        limits: Limits,
    ) -> PyResult<Caster> {
        let names = |names: &[&str]| PyTuple::new(py, names.iter().map(|name| PyString::intern(py, name))).map(Bound::unbind);
        let making = Making {
            cast: cast.unbind(),
            message: message.unbind(),
            verification: verification.unbind(),
            replace: replace.unbind(),
            metadata_names: names(&["conversation_id", "message_id", "timestamp"])?,
            routing_names: names(&["expires_at", "idempotency_key", "key"])?,
            verification_names: names(&["content_hash", "seal"])?,
        };
        Ok(Caster { making, is_canonical: is_canonical.unbind(), last: None, tail_length: 0, limits })
    }

    /// What becomes of a message and the layouts that are known (a dict from what its messages share to the layout).
    ///
    /// None: not plain, or not right. A str: it would need the layout of this name, which is missing. Else its cast: `room` is how many levels
    /// its data may have.
    fn cast<'py>(
        &mut self,
        py: Python<'py>,
        value: &Bound<'py, PyBytes>,
        layouts: &Bound<'py, PyDict>,
        room: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.cast_that_came(py, value, layouts, room, None)
    }

    /// The same of a record with `key` and `headers` from the topic of `expected_type`; None also where the gates `size`, `audience` or
    /// `lifetime` would not let it pass at `now_ms`.
    #[pyo3(signature = (value, layouts, room, key, headers, expected_type, now_ms, append_ms, /))]
    #[allow(clippy::too_many_arguments)]
    fn judge<'py>(
        &mut self,
        py: Python<'py>,
        value: &Bound<'py, PyBytes>,
        layouts: &Bound<'py, PyDict>,
        room: usize,
        key: Option<&[u8]>,
        headers: &Bound<'py, PyTuple>,
        expected_type: &Bound<'py, PyAny>,
        now_ms: i64,
        append_ms: i64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (limits, header_bytes) = (self.limits, counts::header_bytes(headers)?);
        let Some(key) = key else { return Ok(None) };
        if headers.len() > limits.max_headers || header_bytes > limits.max_header_bytes {
            return Ok(None);
        }
        let way = Way { key, expected_type, header_bytes, now_ms, append_ms, limits };
        self.cast_that_came(py, value, layouts, room, Some(way))
    }
}

impl Caster {
    fn cast_that_came<'py>(
        &mut self,
        py: Python<'py>,
        value: &Bound<'py, PyBytes>,
        layouts: &Bound<'py, PyDict>,
        room: usize,
        way: Option<Way<'_, 'py>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(parts) = take_apart(value.as_bytes(), self.tail_length, self.last.as_ref().map(|last| &last.middle[..])) else { return Ok(None) };
        self.tail_length = parts.tail.len();
        if !self.last.as_ref().is_some_and(|last| last.middle == parts.middle && last.rest == parts.rest) {
            let Some(shared) = shared_by(py, &parts) else { return Ok(None) };
            let Some(layout) = layouts.get_item(&shared)? else { return Ok(Some(shared.into_any())) };
            self.last = Some(LastLayout::of(&layout, &parts)?);
        }
        let Some(known) = &self.last else { return Ok(None) };
        if let Some(way) = way {
            if parts.key.unwrap_or(parts.conversation_id) != way.key || !known.message_type.bind(py).eq(way.expected_type)? {
                return Ok(None);
            }
        }
        let Some(proven) = prove(&parts, known) else { return Ok(None) };
        if way.is_some_and(|way| !way.is_in_time(&proven)) {
            return Ok(None);
        }
        let data = PyBytes::new(py, parts.data);
        let payload = if canonical::is_object(parts.data, room) {
            known.payload(py, data)?
        } else if self.is_canonical.bind(py).call1((data,))?.is_truthy()? {
            py.None().into_bound(py)
        } else {
            return Ok(None);
        };
        self.making.cast(value, &parts, known, &proven, &payload, way.map_or(0, |way| way.header_bytes)).map(Some)
    }
}

/// How a record came, and what its gates allow.
#[derive(Clone, Copy)]
struct Way<'a, 'py> {
    key: &'a [u8],
    expected_type: &'a Bound<'py, PyAny>,
    header_bytes: usize,
    now_ms: i64,
    append_ms: i64,
    limits: Limits,
}

impl Way<'_, '_> {
    fn is_in_time(&self, proven: &Proven) -> bool {
        self.now_ms <= proven.expires_ms + self.limits.expiry_tolerance_ms
            && proven.sealed_ms <= self.append_ms + self.limits.skew_tolerance_ms
            && proven.expires_ms - proven.sealed_ms <= self.limits.max_ttl_ms
    }
}

/// What the gates `size` and `lifetime` allow, in the order of `bus.gates.CAST_LIMITS`.
#[derive(Clone, Copy, FromPyObject)]
struct Limits {
    #[pyo3(item(0))]
    max_headers: usize,
    #[pyo3(item(1))]
    max_header_bytes: usize,
    #[pyo3(item(2))]
    expiry_tolerance_ms: i64,
    #[pyo3(item(3))]
    skew_tolerance_ms: i64,
    #[pyo3(item(4))]
    max_ttl_ms: i64,
}

/// What is found while a message is proven.
struct Proven {
    content_hash: [u8; HASH_LENGTH],
    envelope_hash: [u8; HASH_LENGTH],
    seal: [u8; HASH_LENGTH],
    sealed_ms: i64,
    expires_ms: i64,
}

/// None where the texts of a message are not plain, or its hashes not right.
fn prove(parts: &Parts<'_>, known: &LastLayout) -> Option<Proven> {
    let right = is_plain_text(parts.message_id, MAX_ID)
        && !parts.message_id.contains(&b' ')
        && (parts.conversation_id == parts.message_id || is_plain_text(parts.conversation_id, MAX_TEXT))
        && parts.idempotency_key.is_none_or(|text| is_plain_text(text, MAX_TEXT))
        && parts.key.is_none_or(|text| text != parts.conversation_id && is_plain_text(text, MAX_TEXT));
    let (sealed_ms, expires_ms) = (parse_ms(parts.timestamp)?, parse_ms(parts.expires_at)?);
    if !right || expires_ms <= sealed_ms {
        return None;
    }
    let content_hash = hash(&[parts.data]);
    let middle = &parts.tail[1..parts.tail.len() - CLOSING_LENGTH];
    let envelope_hash = hash(&[b"{", middle, b"}}"]);
    let mut statement = Vec::with_capacity(512 + known.stated.len());
    for part in [&b"{\"content_hash\":\""[..], &content_hash, b"\",\"envelope_hash\":\"", &envelope_hash, b"\",\"hops\":0,\"message_id\":\""] {
        statement.extend_from_slice(part);
    }
    for part in [parts.message_id, b"\"", &known.stated, b"\"timestamp\":\"", parts.timestamp, b"\"", &known.stated_end] {
        statement.extend_from_slice(part);
    }
    let seal = hash(&[&statement]);
    let claimed = &parts.closing[TO_CONTENT.len()..];
    let second = HASH_LENGTH + TO_SEAL.len();
    let holds = claimed[..HASH_LENGTH] == content_hash
        && claimed[HASH_LENGTH..second] == *TO_SEAL
        && claimed[second..second + HASH_LENGTH] == seal
        && claimed[second + HASH_LENGTH..] == *END;
    holds.then_some(Proven { content_hash, envelope_hash, seal, sealed_ms, expires_ms })
}

impl Making {
    fn cast<'py>(
        &self,
        value: &Bound<'py, PyBytes>,
        parts: &Parts<'_>,
        known: &LastLayout,
        proven: &Proven,
        payload: &Bound<'py, PyAny>,
        header_bytes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = value.py();
        let text = |text: &[u8]| ascii(py, text).map(Bound::into_any);
        let optional = |content: Option<&[u8]>| content.map_or_else(|| Ok(py.None().into_bound(py)), text);
        let message_id = text(parts.message_id)?;
        let conversation_id = if parts.conversation_id == parts.message_id { message_id.clone() } else { text(parts.conversation_id)? };
        let replace = self.replace.bind(py);
        let (metadata, timestamp) = (known.metadata.bind(py), text(parts.timestamp)?);
        let metadata = called(replace, self.metadata_names.bind(py), [metadata, &conversation_id, &message_id, &timestamp])?;
        let (routing, expires_at) = (known.routing.bind(py), text(parts.expires_at)?);
        let keys = [optional(parts.idempotency_key)?, optional(parts.key)?];
        let routing = called(replace, self.routing_names.bind(py), [routing, &expires_at, &keys[0], &keys[1]])?;
        let hashes = [text(&proven.content_hash)?, text(&proven.seal)?];
        let verification = called(self.verification.bind(py), self.verification_names.bind(py), hashes.each_ref())?;
        let data_end = FRONT.len() + parts.data.len();
        let message = (value, metadata, routing, verification, text(&proven.envelope_hash)?, data_end, payload);
        let message = self.message.bind(py).call1(message)?;
        self.cast.bind(py).call1((message, &known.known, proven.sealed_ms, proven.expires_ms, header_bytes))
    }
}
