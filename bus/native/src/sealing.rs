//! Sealing a plain message by its template, and proving one by its mould: what `producers.template` and `bus.moulds` do, in one pass.

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyString, PyTuple};
use sha2::{Digest, Sha256};

use crate::canonical;

const HEX: &[u8; 16] = b"0123456789abcdef";
const HASH_LENGTH: usize = 7 + 64;

/// The two digits of each byte.
const PAIRS: [[u8; 2]; 256] = {
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [HEX[byte >> 4], HEX[byte & 15]];
        byte += 1;
    }
    pairs
};

fn hash(parts: &[&[u8]]) -> [u8; HASH_LENGTH] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    let mut text = [0; HASH_LENGTH];
    text[..7].copy_from_slice(b"sha256:");
    for (pair, byte) in text[7..].chunks_exact_mut(2).zip(hasher.finalize()) {
        pair.copy_from_slice(&PAIRS[usize::from(byte)]);
    }
    text
}

/// The text of a UUID of version 7 (RFC 9562, section 5.7) as `bus.names.uuid7` makes it of a time and ten random bytes.
fn uuid7(now_ms: i64, entropy: &[u8]) -> [u8; 36] {
    let mut text = *b"00000000-0000-7000-8000-000000000000";
    let time = (now_ms as u64) << 16;
    for place in 0..12 {
        let digit = HEX[(time >> (60 - 4 * place)) as usize & 15];
        text[if place < 8 { place } else { place + 1 }] = digit;
    }
    let tail = |place: usize| HEX[(entropy[place / 2] >> (4 - 4 * (place % 2))) as usize & 15];
    for place in 0..3 {
        text[15 + place] = tail(place);
        text[20 + place] = tail(5 + place);
    }
    text[19] = b"89ab"[usize::from(entropy[1] & 3)];
    for place in 8..20 {
        text[16 + place] = tail(place);
    }
    text
}

const DAY_MS: i64 = 86_400_000;

/// `2026-01-31T12:00:00.000Z` of milliseconds since 1970 in the years 1970 to 9999.
fn format_ms(ms: i64) -> Option<[u8; 24]> {
    let (days, rest) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    // Days to a date, the algorithm civil_from_days.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    if ms < 0 || year > 9_999 {
        return None;
    }
    let mut text = *b"0000-00-00T00:00:00.000Z";
    let mut put = |at: usize, width: usize, mut number: i64| {
        for place in (at..at + width).rev() {
            text[place] = b'0' + (number % 10) as u8;
            number /= 10;
        }
    };
    put(0, 4, year);
    put(5, 2, month);
    put(8, 2, day);
    put(11, 2, rest / 3_600_000);
    put(14, 2, rest / 60_000 % 60);
    put(17, 2, rest / 1_000 % 60);
    put(20, 3, rest % 1_000);
    Some(text)
}

/// The milliseconds of a text that `format_ms` writes; None for any other.
fn parse_ms(text: &[u8]) -> Option<i64> {
    let number = |from: usize, to: usize| {
        text[from..to].iter().try_fold(0_i64, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0')))
    };
    if text.len() != 24 {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let time = number(11, 13)? * 3_600_000 + number(14, 16)? * 60_000 + number(17, 19)? * 1_000 + number(20, 23)?;
    // Days since 1970, its reverse.
    let march_year = if month <= 2 { year - 1 } else { year };
    let era = march_year.div_euclid(400);
    let year_of_era = march_year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let ms = (era * 146_097 + day_of_era - 719_468) * DAY_MS + time;
    // Written again it shows every date that does not exist.
    (format_ms(ms)? == *text).then_some(ms)
}

/// What a template knows of every message: what stands between the id and the time, in the metadata and in the statement.
pub struct Frame<'a> {
    pub identity: &'a [u8],
    pub stated: &'a [u8],
}

/// The texts of the times of messages that are sealed together; None outside of the years that can be written.
pub struct Moment {
    now_ms: i64,
    timestamp: [u8; 24],
    expires: [u8; 24],
}

impl Moment {
    pub fn of(now_ms: i64, ttl_ms: i64) -> Option<Moment> {
        if !(0..1 << 48).contains(&now_ms) || ttl_ms < 0 {
            return None;
        }
        Some(Moment { now_ms, timestamp: format_ms(now_ms)?, expires: now_ms.checked_add(ttl_ms).and_then(format_ms)? })
    }
}

/// Which conversation a message belongs to, and its keys, where they are given.
#[derive(Clone, Copy, Default)]
pub struct Keys<'a> {
    pub conversation_id: Option<&'a [u8]>,
    pub idempotency_key: Option<&'a [u8]>,
    pub key: Option<&'a [u8]>,
}

impl Keys<'_> {
    fn are_plain(&self) -> bool {
        [self.conversation_id, self.idempotency_key, self.key].into_iter().flatten().all(|text| is_plain_text(text, MAX_TEXT))
    }
}

fn put(value: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| value.extend_from_slice(part));
}

/// Write the rest of a message behind its front and its data, and answer with its id; None for keys that have to go the general way.
pub fn complete(value: &mut Vec<u8>, frame: &Frame<'_>, moment: &Moment, entropy: &[u8], keys: Keys<'_>) -> Option<[u8; 36]> {
    if entropy.len() != ENTROPY || !keys.are_plain() {
        return None;
    }
    let id = uuid7(moment.now_ms, entropy);
    let conversation = keys.conversation_id.unwrap_or(&id);
    let content_hash = hash(&[&value[FRONT.len()..]]);
    value.push(b',');
    let begin = value.len();
    put(value, &[b"\"metadata\":{\"conversation_id\":\"", conversation, TO_ID, &id, b"\"", frame.identity, &moment.timestamp, TO_EXPIRY]);
    put(value, &[&moment.expires]);
    if let Some(text) = keys.idempotency_key {
        put(value, &[TO_IDEMPOTENCY, text]);
    }
    if let Some(text) = keys.key.filter(|key| *key != conversation) {
        put(value, &[TO_KEY, text]);
    }
    put(value, &[b"\"}"]);
    let envelope_hash = hash(&[b"{", &value[begin..], b"}"]);
    let names = [&b"{\"content_hash\":\""[..], &content_hash, b"\",\"envelope_hash\":\"", &envelope_hash, TO_ID, &id, b"\"", frame.stated];
    // Written behind the message for a moment: there is room.
    let end = value.len();
    put(value, &names);
    put(value, &[&moment.timestamp, b"\"}"]);
    let seal = hash(&[&value[end..]]);
    value.truncate(end);
    put(value, &[b",\"verification\":{\"content_hash\":\"", &content_hash, TO_SEAL, &seal, END]);
    Some(id)
}

/// Seal `data` as a template says: (id, record key, value). None for what has to go the general way: other times, texts that are not plain.
#[pyfunction]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
pub fn seal_plain<'py>(
    py: Python<'py>,
    identity: &[u8],
    stated: &[u8],
    data: &[u8],
    now_ms: i64,
    ttl_ms: i64,
    entropy: &[u8],
    conversation_id: Option<&str>,
    idempotency_key: Option<&str>,
    key: Option<&str>,
) -> PyResult<Option<(Bound<'py, PyString>, Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
    let Some(moment) = Moment::of(now_ms, ttl_ms) else { return Ok(None) };
    let keys = Keys {
        conversation_id: conversation_id.map(str::as_bytes),
        idempotency_key: idempotency_key.map(str::as_bytes),
        key: key.map(str::as_bytes),
    };
    let mut value = Vec::with_capacity(data.len() + identity.len() + 1_280);
    put(&mut value, &[FRONT, data]);
    let Some(id) = complete(&mut value, &Frame { identity, stated }, &moment, entropy, keys) else { return Ok(None) };
    let record_key = keys.key.or(keys.conversation_id).unwrap_or(&id);
    Ok(Some((ascii(py, &id)?, PyBytes::new(py, record_key), PyBytes::new(py, &value))))
}

pub const FRONT: &[u8] = b"{\"data\":";
const HEAD: &[u8] = b",\"metadata\":{\"conversation_id\":\"";
const TO_ID: &[u8] = b"\",\"hops\":0,\"message_id\":\"";
const TO_TIME: &[u8] = b",\"timestamp\":\"";
const TO_EXPIRY: &[u8] = b"\"},\"routing\":{\"expires_at\":\"";
const TO_IDEMPOTENCY: &[u8] = b"\",\"idempotency_key\":\"";
const TO_KEY: &[u8] = b"\",\"key\":\"";
const TO_CONTENT: &[u8] = b"},\"verification\":{\"content_hash\":\"";
const TO_SEAL: &[u8] = b"\",\"seal\":\"";
const END: &[u8] = b"\"}}";
const TIME_LENGTH: usize = 24;
const CLOSING_LENGTH: usize = TO_CONTENT.len() + HASH_LENGTH + TO_SEAL.len() + HASH_LENGTH + END.len();
const LONGEST_TAIL: usize = 4_096;
const MAX_ID: usize = 128;
const MAX_TEXT: usize = 256;
/// Random bytes of one message's id.
pub const ENTROPY: usize = 10;

/// The slots of a plain message and what stands between them, as `bus.moulds` describes it.
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

/// `likely` is how long the tail of the message before was. Where the data end is only a guess in either case: it is right when what is before
/// it proves to be one object, and what is behind it to be the whole of a mould.
fn take_apart(value: &[u8], likely: usize) -> Option<Parts<'_>> {
    if !value.starts_with(FRONT) {
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
    let stamp = find(tail, TO_TIME, at)?;
    let middle = tail.get(at + 1..stamp)?;
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

/// What a plain message shares with others of its mould; None where it is no text.
fn shared_by<'py>(py: Python<'py>, parts: &Parts<'_>) -> Option<Bound<'py, PyString>> {
    let mut shared = Vec::with_capacity(parts.middle.len() + parts.rest.len() + 1);
    shared.extend_from_slice(parts.middle);
    shared.push(0);
    shared.extend_from_slice(parts.rest);
    std::str::from_utf8(&shared).ok().map(|text| PyString::new(py, text))
}

fn is_plain_text(text: &[u8], longest: usize) -> bool {
    !text.is_empty() && text.len() <= longest && text.iter().all(|&byte| (0x20..0x7f).contains(&byte) && byte != b'\\' && byte != b'"')
}

pub fn ascii<'py>(py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyString>> {
    std::str::from_utf8(text).map(|text| PyString::new(py, text)).map_err(|_| PyValueError::new_err("not ASCII"))
}

/// What a mould is found by and what it says, as it was last used: nearly always it is the next message's, too.
struct LastMould {
    middle: Vec<u8>,
    rest: Vec<u8>,
    stated: Vec<u8>,
    stated_end: Vec<u8>,
    mould: Py<PyAny>,
}

/// Casts messages in moulds.
#[pyclass]
pub struct Caster {
    last: Option<LastMould>,
    tail_length: usize,
}

#[pymethods]
impl Caster {
    #[new]
    fn new() -> Caster {
        Caster { last: None, tail_length: 0 }
    }

    /// What becomes of a message and the moulds that are known (a dict from what its messages share to the mould).
    ///
    /// None: not plain, or not right. A str: it would need the mould of this name, which is missing. Else (mould, canonical, data_end,
    /// conversation_id, message_id, timestamp, expires_at, idempotency_key, key, content_hash, envelope_hash, seal, sealed_ms, expires_ms) of
    /// a message whose hashes are right; `canonical` says whether its data are proven to be one object of at most `room` levels.
    fn cast<'py>(&mut self, py: Python<'py>, value: &[u8], moulds: &Bound<'py, PyDict>, room: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(parts) = take_apart(value, self.tail_length) else { return Ok(None) };
        self.tail_length = parts.tail.len();
        if !self.last.as_ref().is_some_and(|last| last.middle == parts.middle && last.rest == parts.rest) {
            let Some(shared) = shared_by(py, &parts) else { return Ok(None) };
            let Some(mould) = moulds.get_item(&shared)? else { return Ok(Some(shared.into_any())) };
            let stated = mould.getattr(intern!(py, "stated_bytes"))?.cast_into::<PyTuple>()?;
            self.last = Some(LastMould {
                middle: parts.middle.to_vec(),
                rest: parts.rest.to_vec(),
                stated: stated.get_item(0)?.cast_into::<PyBytes>()?.as_bytes().to_vec(),
                stated_end: stated.get_item(1)?.cast_into::<PyBytes>()?.as_bytes().to_vec(),
                mould: mould.unbind(),
            });
        }
        let Some(last) = &self.last else { return Ok(None) };
        prove(py, &parts, last, room)
    }
}

fn prove<'py>(py: Python<'py>, parts: &Parts<'_>, known: &LastMould, room: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (stated, stated_end) = (&known.stated[..], &known.stated_end[..]);
    let right = is_plain_text(parts.message_id, MAX_ID)
        && !parts.message_id.contains(&b' ')
        && (parts.conversation_id == parts.message_id || is_plain_text(parts.conversation_id, MAX_TEXT))
        && parts.idempotency_key.is_none_or(|text| is_plain_text(text, MAX_TEXT))
        && parts.key.is_none_or(|text| text != parts.conversation_id && is_plain_text(text, MAX_TEXT));
    let (Some(sealed_ms), Some(expires_ms), true) = (parse_ms(parts.timestamp), parse_ms(parts.expires_at), right) else {
        return Ok(None);
    };
    if expires_ms <= sealed_ms {
        return Ok(None);
    }
    let content_hash = hash(&[parts.data]);
    let middle = &parts.tail[1..parts.tail.len() - CLOSING_LENGTH];
    let envelope_hash = hash(&[b"{", middle, b"}}"]);
    let mut statement = Vec::with_capacity(512 + stated.len());
    for part in [&b"{\"content_hash\":\""[..], &content_hash, b"\",\"envelope_hash\":\"", &envelope_hash, b"\",\"hops\":0,\"message_id\":\""] {
        statement.extend_from_slice(part);
    }
    for part in [parts.message_id, b"\"", stated, b"\"timestamp\":\"", parts.timestamp, b"\"", stated_end] {
        statement.extend_from_slice(part);
    }
    let seal = hash(&[&statement]);
    let claimed = &parts.closing[TO_CONTENT.len()..];
    let second = HASH_LENGTH + TO_SEAL.len();
    if claimed[..HASH_LENGTH] != content_hash
        || claimed[HASH_LENGTH..second] != *TO_SEAL
        || claimed[second..second + HASH_LENGTH] != seal
        || claimed[second + HASH_LENGTH..] != *END
    {
        return Ok(None);
    }
    let message_id = ascii(py, parts.message_id)?;
    let conversation_id = if parts.conversation_id == parts.message_id { message_id.clone() } else { ascii(py, parts.conversation_id)? };
    let optional = |text: Option<&[u8]>| -> PyResult<Bound<'py, PyAny>> {
        Ok(match text {
            Some(text) => ascii(py, text)?.into_any(),
            None => py.None().into_bound(py),
        })
    };
    let canonical = canonical::is_object(parts.data, room);
    let slots = [
        known.mould.bind(py).clone(),
        PyBool::new(py, canonical).to_owned().into_any(),
        (FRONT.len() + parts.data.len()).into_pyobject(py)?.into_any(),
        conversation_id.into_any(),
        message_id.into_any(),
        ascii(py, parts.timestamp)?.into_any(),
        ascii(py, parts.expires_at)?.into_any(),
        optional(parts.idempotency_key)?,
        optional(parts.key)?,
        ascii(py, &content_hash)?.into_any(),
        ascii(py, &envelope_hash)?.into_any(),
        ascii(py, &seal)?.into_any(),
        sealed_ms.into_pyobject(py)?.into_any(),
        expires_ms.into_pyobject(py)?.into_any(),
    ];
    Ok(Some(PyTuple::new(py, slots)?.into_any()))
}
