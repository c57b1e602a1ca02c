//! Sealing a plain message by its template, what `producers.sealing.envelope_template` does, in one pass; and what a plain message looks like.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};
use sha2::{Digest, Sha256};

const HEX: &[u8; 16] = b"0123456789abcdef";
pub const HASH_LENGTH: usize = 7 + 64;

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

pub fn hash(parts: &[&[u8]]) -> [u8; HASH_LENGTH] {
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

/// `sha256:` and 64 lower-case hex digits.
#[pyfunction]
pub fn digest<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyString>> {
    ascii(py, &hash(&[data]))
}

/// The text of a UUID of version 7 (RFC 9562, section 5.7) as `bus.protocol.identifiers.uuid7` makes it of a time and ten random bytes.
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
pub fn parse_ms(text: &[u8]) -> Option<i64> {
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

/// What a template knows of every message: what stands between conversation and id, between id and time, and behind the keys; and, in the
/// statement, between id and time.
pub struct Frame<'a> {
    to_id: &'a [u8],
    identity: &'a [u8],
    routed: &'a [u8],
    stated: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The four parts, in that order, as a tuple that keeps them.
    pub fn of(parts: &'a Bound<'_, PyTuple>) -> PyResult<Frame<'a>> {
        let part = |place: usize| -> PyResult<&'a [u8]> { Ok(parts.get_borrowed_item(place)?.extract()?) };
        Ok(Frame { to_id: part(0)?, identity: part(1)?, routed: part(2)?, stated: part(3)? })
    }
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

    /// The same moment for a message that lives for `ttl_ms`.
    pub fn lasting(&self, ttl_ms: i64) -> Option<Moment> {
        Some(Moment { expires: self.now_ms.checked_add(ttl_ms).and_then(format_ms)?, ..*self })
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
/// `stated` is given its statement, where somebody is to sign it.
pub fn complete(
    value: &mut Vec<u8>,
    frame: &Frame<'_>,
    moment: &Moment,
    entropy: &[u8],
    keys: Keys<'_>,
    stated: Option<&mut Vec<u8>>,
) -> Option<[u8; 36]> {
    if entropy.len() != ENTROPY || !keys.are_plain() {
        return None;
    }
    let id = uuid7(moment.now_ms, entropy);
    let conversation = keys.conversation_id.unwrap_or(&id);
    let content_hash = hash(&[&value[FRONT.len()..]]);
    value.push(b',');
    let begin = value.len();
    put(value, &[b"\"metadata\":{\"conversation_id\":\"", conversation, frame.to_id, &id, frame.identity, &moment.timestamp, TO_EXPIRY]);
    put(value, &[&moment.expires]);
    if let Some(text) = keys.idempotency_key {
        put(value, &[TO_IDEMPOTENCY, text]);
    }
    if let Some(text) = keys.key.filter(|key| *key != conversation) {
        put(value, &[TO_KEY, text]);
    }
    put(value, &[frame.routed]);
    let envelope_hash = hash(&[b"{", &value[begin..], b"}"]);
    let names = [&b"{\"content_hash\":\""[..], &content_hash, b"\",\"envelope_hash\":\"", &envelope_hash, TO_ID, &id, frame.stated];
    // Written behind the message for a moment: there is room.
    let end = value.len();
    put(value, &names);
    put(value, &[&moment.timestamp, b"\"}"]);
    let seal = hash(&[&value[end..]]);
    if let Some(stated) = stated {
        stated.extend_from_slice(&value[end..]);
    }
    value.truncate(end);
    put(value, &[b",\"verification\":{\"content_hash\":\"", &content_hash, TO_SEAL, &seal, END]);
    Some(id)
}

/// Seal `data` as a template says: (id, record key, value). None for what has to go the general way: other times, texts that are not plain.
#[pyfunction]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
pub fn seal_plain<'py>(
    py: Python<'py>,
    frame: &Bound<'py, PyTuple>,
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
    let frame = Frame::of(frame)?;
    let mut value = Vec::with_capacity(data.len() + frame.identity.len() + 1_280);
    put(&mut value, &[FRONT, data]);
    let Some(id) = complete(&mut value, &frame, &moment, entropy, keys, None) else { return Ok(None) };
    let record_key = keys.key.or(keys.conversation_id).unwrap_or(&id);
    Ok(Some((ascii(py, &id)?, PyBytes::new(py, record_key), PyBytes::new(py, &value))))
}

/// What a template knows of every message that another one has caused; what stands between these parts is the cause's, or the message's own.
struct CausedFrame<'a> {
    about: &'a [u8],
    kind_of: &'a [u8],
    route: &'a [u8],
    by: &'a [u8],
    routed: &'a [u8],
    stated_by: &'a [u8],
}

/// What a message inherits: pieces of JSON, each with the comma before it, or empty.
struct Inherited<'a> {
    front: &'a [u8],
    conversation_id: &'a str,
    hops: u64,
    parent_task: &'a [u8],
    run: &'a [u8],
    task: &'a [u8],
    trace: &'a [u8],
    links: u64,
    seal: &'a str,
    chain: &'a [u8],
}

impl<'a> CausedFrame<'a> {
    fn of(parts: &'a Bound<'_, PyTuple>) -> PyResult<CausedFrame<'a>> {
        let part = |place: usize| -> PyResult<&'a [u8]> { Ok(parts.get_borrowed_item(place)?.extract()?) };
        Ok(CausedFrame { about: part(0)?, kind_of: part(1)?, route: part(2)?, by: part(3)?, routed: part(4)?, stated_by: part(5)? })
    }
}

impl<'a> Inherited<'a> {
    fn of(parts: &'a Bound<'_, PyTuple>) -> PyResult<Inherited<'a>> {
        let part = |place: usize| -> PyResult<&'a [u8]> { Ok(parts.get_borrowed_item(place)?.extract()?) };
        let text = |place: usize| -> PyResult<&'a str> { Ok(parts.get_borrowed_item(place)?.extract()?) };
        let count = |place: usize| -> PyResult<u64> { parts.get_borrowed_item(place)?.extract() };
        Ok(Inherited {
            front: part(0)?,
            conversation_id: text(1)?,
            hops: count(2)?,
            parent_task: part(3)?,
            run: part(4)?,
            task: part(5)?,
            trace: part(6)?,
            links: count(7)?,
            seal: text(8)?,
            chain: part(9)?,
        })
    }
}

/// Seal `data` for a message that another one has caused: (id, record key, value). `chained` says that it carries a proof chain, `max_hops` is
/// what it takes over from its cause. None for what has to go the general way: other times, texts that are not plain.
#[pyfunction]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
pub fn seal_caused<'py>(
    py: Python<'py>,
    frame: &Bound<'py, PyTuple>,
    inherited: &Bound<'py, PyTuple>,
    chained: bool,
    max_hops: Option<u64>,
    data: &[u8],
    now_ms: i64,
    ttl_ms: i64,
    entropy: &[u8],
    idempotency_key: Option<&str>,
    key: Option<&str>,
) -> PyResult<Option<(Bound<'py, PyString>, Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
    let Some(moment) = Moment::of(now_ms, ttl_ms) else { return Ok(None) };
    let keys = Keys { conversation_id: None, idempotency_key: idempotency_key.map(str::as_bytes), key: key.map(str::as_bytes) };
    if entropy.len() != ENTROPY || !keys.are_plain() {
        return Ok(None);
    }
    let (frame, cause) = (CausedFrame::of(frame)?, Inherited::of(inherited)?);
    let id = uuid7(now_ms, entropy);
    let hops = cause.hops.to_string();
    let conversation = cause.conversation_id.as_bytes();
    let content_hash = hash(&[data]);
    let mut value = Vec::with_capacity(data.len() + cause.front.len() + frame.by.len() + cause.chain.len() + 2_048);
    put(&mut value, &[FRONT, data, b","]);
    let begin = value.len();
    put(&mut value, &[b"\"metadata\":", cause.front, hops.as_bytes(), b",", frame.about, &id, frame.kind_of, cause.parent_task]);
    put(&mut value, &[frame.route, cause.run, frame.by, cause.task, TO_TIME, &moment.timestamp, b"\"", cause.trace]);
    put(&mut value, &[b"},\"routing\":{\"expires_at\":\"", &moment.expires]);
    if let Some(text) = keys.idempotency_key {
        put(&mut value, &[TO_IDEMPOTENCY, text]);
    }
    if let Some(text) = keys.key.filter(|key| *key != conversation) {
        put(&mut value, &[TO_KEY, text]);
    }
    match max_hops {
        Some(most) => put(&mut value, &[b"\",\"max_hops\":", most.to_string().as_bytes(), &frame.routed[1..]]),
        None => put(&mut value, &[frame.routed]),
    }
    let envelope_hash = hash(&[b"{", &value[begin..], b"}"]);
    let links = if chained { format!(",\"links\":{}", cause.links) } else { String::new() };
    let parents = [&b",\"parents\":[\""[..], cause.seal.as_bytes(), b"\"]"].concat();
    let seal = hash(&[
        b"{\"content_hash\":\"",
        &content_hash,
        b"\",\"envelope_hash\":\"",
        &envelope_hash,
        b"\",\"hops\":",
        hops.as_bytes(),
        links.as_bytes(),
        b",\"message_id\":\"",
        &id,
        frame.kind_of,
        &parents,
        frame.stated_by,
        &moment.timestamp,
        b"\"}",
    ]);
    put(&mut value, &[b",\"verification\":{\"content_hash\":\"", &content_hash, b"\"", &parents]);
    if chained {
        put(&mut value, &[b",\"proof_chain\":", cause.chain]);
    }
    put(&mut value, &[b",\"seal\":\"", &seal, END]);
    let record_key = keys.key.unwrap_or(conversation);
    Ok(Some((ascii(py, &id)?, PyBytes::new(py, record_key), PyBytes::new(py, &value))))
}

pub const FRONT: &[u8] = b"{\"data\":";
pub const HEAD: &[u8] = b",\"metadata\":{\"conversation_id\":\"";
pub const TO_ID: &[u8] = b"\",\"hops\":0,\"message_id\":\"";
pub const TO_TIME: &[u8] = b",\"timestamp\":\"";
pub const TO_EXPIRY: &[u8] = b"\"},\"routing\":{\"expires_at\":\"";
pub const TO_IDEMPOTENCY: &[u8] = b"\",\"idempotency_key\":\"";
pub const TO_KEY: &[u8] = b"\",\"key\":\"";
pub const TO_CONTENT: &[u8] = b"},\"verification\":{\"content_hash\":\"";
pub const TO_SEAL: &[u8] = b"\",\"seal\":\"";
pub const END: &[u8] = b"\"}}";
pub const TO_SIGNATURE: &[u8] = b"\",\"signature\":\"";
pub const MAX_TEXT: usize = 256;
/// Random bytes of one message's id.
pub const ENTROPY: usize = 10;

pub fn is_plain_text(text: &[u8], longest: usize) -> bool {
    !text.is_empty() && text.len() <= longest && text.iter().all(|&byte| (0x20..0x7f).contains(&byte) && byte != b'\\' && byte != b'"')
}

pub fn ascii<'py>(py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyString>> {
    std::str::from_utf8(text).map(|text| PyString::new(py, text)).map_err(|_| PyValueError::new_err("not ASCII"))
}
