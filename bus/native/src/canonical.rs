//! Strict canonical JSON (RFC 8785): whether bytes are proven to be it.
//!
//! Accepts and never refuses: `false` says nothing, and the exact way (`bus.protocol.canonical`) finds out. What it leaves to that way: escapes
//! in keys, and keys with characters from U+E000 on. Also writes its strings.

/// Whether `data` is one canonical JSON object of at most `room` levels.
pub fn is_object(data: &[u8], room: usize) -> bool {
    if data.first() != Some(&b'{') || std::str::from_utf8(data).is_err() {
        return false;
    }
    matches!(value(data, 0, room), Some(end) if end == data.len())
}

fn value(data: &[u8], at: usize, room: usize) -> Option<usize> {
    match *data.get(at)? {
        b'"' => string(data, at + 1).map(|(end, _)| end),
        b'{' => object(data, at + 1, room.checked_sub(1)?),
        b'[' => list(data, at + 1, room.checked_sub(1)?),
        b't' => literal(data, at, b"true"),
        b'f' => literal(data, at, b"false"),
        b'n' => literal(data, at, b"null"),
        _ => number(data, at),
    }
}

fn literal(data: &[u8], at: usize, text: &[u8]) -> Option<usize> {
    data[at..].starts_with(text).then_some(at + text.len())
}

fn object(data: &[u8], mut at: usize, room: usize) -> Option<usize> {
    if *data.get(at)? == b'}' {
        return Some(at + 1);
    }
    let mut before: Option<&[u8]> = None;
    loop {
        if *data.get(at)? != b'"' {
            return None;
        }
        let (end, plain) = string(data, at + 1)?;
        let key = &data[at + 1..end - 1];
        // Below U+E000 the order of UTF-8 is that of UTF-16.
        if !plain || key.iter().any(|&byte| byte >= 0xee) || before.is_some_and(|name| name >= key) {
            return None;
        }
        before = Some(key);
        if *data.get(end)? != b':' {
            return None;
        }
        at = value(data, end + 1, room)?;
        match *data.get(at)? {
            b',' => at += 1,
            b'}' => return Some(at + 1),
            _ => return None,
        }
    }
}

fn list(data: &[u8], mut at: usize, room: usize) -> Option<usize> {
    if *data.get(at)? == b']' {
        return Some(at + 1);
    }
    loop {
        at = value(data, at, room)?;
        match *data.get(at)? {
            b',' => at += 1,
            b']' => return Some(at + 1),
            _ => return None,
        }
    }
}

/// From behind the opening quote to behind the closing one, and whether nothing in between was escaped.
fn string(data: &[u8], mut at: usize) -> Option<(usize, bool)> {
    let mut plain = true;
    loop {
        at = plain_until(data, at);
        match *data.get(at)? {
            b'"' => return Some((at + 1, plain)),
            b'\\' => {
                plain = false;
                at += escape(&data[at + 1..])?;
            }
            _ => return None,
        }
    }
}

/// The high bits of those of eight bytes that are a quote, a backslash or a control character; exact up to the first one.
fn specials_in(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    let zeros_in = |lanes: u64| lanes.wrapping_sub(ONES) & !lanes & HIGHS;
    let controls = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
    zeros_in(word ^ (ONES * 0x22)) | zeros_in(word ^ (ONES * 0x5c)) | controls
}

/// The length of an escape, its backslash included, if it is the one that RFC 8785 writes.
fn escape(rest: &[u8]) -> Option<usize> {
    match *rest.first()? {
        b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't' => Some(2),
        b'u' => {
            let digits = rest.get(1..5)?;
            let low = match (digits[2], digits[3]) {
                (b'0', low @ (b'0'..=b'7' | b'b' | b'e' | b'f')) => low,
                (b'1', low @ (b'0'..=b'9' | b'a'..=b'f')) => low,
                _ => return None,
            };
            (digits[..2] == *b"00" && low != 0).then_some(6)
        }
        _ => None,
    }
}

const SAFE_DIGITS: usize = 15;

fn number(data: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    if data.get(at) == Some(&b'-') {
        at += 1;
    }
    let digits = at;
    while data.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    let count = at - digits;
    if count == 0 || (data[digits] == b'0' && count > 1) {
        return None;
    }
    if count <= SAFE_DIGITS && !matches!(data.get(at), Some(b'.' | b'e' | b'E')) {
        let minus_zero = data[digits] == b'0' && digits > start;
        return (!minus_zero).then_some(at);
    }
    if let Some(end) = short_fraction(data, digits, at) {
        return Some(end);
    }
    while matches!(data.get(at), Some(b'0'..=b'9' | b'.' | b'e' | b'+' | b'-')) {
        at += 1;
    }
    let text = std::str::from_utf8(&data[start..at]).ok()?;
    let double: f64 = text.parse().ok()?;
    (double.is_finite() && ryu_js::Buffer::new().format_finite(double) == text).then_some(at)
}

/// Zeros that RFC 8785 writes at most between the point and the first digit of a number below 1.
const LEADING_ZEROS: usize = 5;

/// The end of a number with `digits..point` before its point, where it is written as it must be, which is told without reading it.
///
/// Two decimals of at most 15 digits are never the same double, so that there is no shorter way to write one of them.
fn short_fraction(data: &[u8], digits: usize, point: usize) -> Option<usize> {
    if data.get(point) != Some(&b'.') {
        return None;
    }
    let fraction = &data[point + 1..];
    let length = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let first = fraction[..length].iter().position(|&byte| byte != b'0')?;
    let follows = fraction.get(length);
    let too_small = data[digits] == b'0' && first > LEADING_ZEROS;
    let is_short = point - digits + length <= SAFE_DIGITS && fraction[length - 1] != b'0';
    (is_short && !too_small && !matches!(follows, Some(b'e' | b'E' | b'.' | b'+' | b'-'))).then_some(point + 1 + length)
}

/// Write `text`, which is UTF-8, as a string.
pub fn put_string(text: &[u8], out: &mut Vec<u8>) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    let start = out.len();
    if !put_plain(text, out) {
        out.truncate(start);
        put_escaped(text, out);
    }
    out.push(b'"');
}

/// Write `text` as long as it stands as it is; whether that is all of it. Copies of a fixed size, for most texts are short.
fn put_plain(text: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let mut words = text.chunks_exact(8);
    for eight in &mut words {
        let word = u64::from_le_bytes(eight.try_into().unwrap_or_default());
        if specials_in(word) != 0 {
            return false;
        }
        out.extend_from_slice(&word.to_le_bytes());
    }
    let rest = words.remainder();
    if rest.is_empty() {
        return true;
    }
    let Some(last) = text.last_chunk::<8>() else {
        out.extend(rest);
        return rest.iter().all(|byte| !matches!(byte, b'"' | b'\\' | ..=0x1f));
    };
    // Some of these stand there already.
    out.truncate(start + text.len() - 8);
    out.extend_from_slice(last);
    specials_in(u64::from_le_bytes(*last)) == 0
}

fn put_escaped(text: &[u8], out: &mut Vec<u8>) {
    let mut from = 0;
    let mut at = 0;
    loop {
        at = plain_until(text, at);
        out.extend_from_slice(&text[from..at]);
        let Some(&byte) = text.get(at) else { break };
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            8 => out.extend_from_slice(b"\\b"),
            9 => out.extend_from_slice(b"\\t"),
            10 => out.extend_from_slice(b"\\n"),
            12 => out.extend_from_slice(b"\\f"),
            13 => out.extend_from_slice(b"\\r"),
            _ => out.extend_from_slice(&[b'\\', b'u', b'0', b'0', b'0' + (byte >> 4), b"0123456789abcdef"[usize::from(byte & 15)]]),
        }
        at += 1;
        from = at;
    }
}

/// The place of the first quote, backslash or control character from `at` on, or the end.
fn plain_until(text: &[u8], mut at: usize) -> usize {
    while let Some(eight) = text.get(at..at + 8) {
        let specials = specials_in(u64::from_le_bytes(eight.try_into().unwrap_or_default()));
        if specials != 0 {
            return at + specials.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    // Of the last seven bytes one by one.
    while text.get(at).is_some_and(|byte| !matches!(byte, b'"' | b'\\' | ..=0x1f)) {
        at += 1;
    }
    at
}
