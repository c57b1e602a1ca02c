//! What is counted of records and of JSON text in one pass, without parsing.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

const LONG: usize = 16;

/// Whether a number of sixteen digits or more may stand in JSON `data`: so many digits behind one of `:`, `,`, `[`, `-`.
#[pyfunction]
pub fn has_long_integer(data: &[u8]) -> bool {
    // A run of sixteen digits covers one of every sixteen bytes.
    let mut at = LONG - 1;
    while at < data.len() {
        if !data[at].is_ascii_digit() {
            at += LONG;
            continue;
        }
        let start = data[..at].iter().rposition(|byte| !byte.is_ascii_digit()).map_or(0, |before| before + 1);
        let end = data[at..].iter().position(|byte| !byte.is_ascii_digit()).map_or(data.len(), |length| at + length);
        if end - start >= LONG && start > 0 && matches!(data[start - 1], b':' | b',' | b'[' | b'-') {
            return true;
        }
        at = end + LONG;
    }
    false
}

/// How many `{`, `[` and `,` stand in `data` between two places.
#[pyfunction]
pub fn count_marks(data: &[u8], start: usize, end: usize) -> (usize, usize, usize) {
    let (mut objects, mut lists, mut commas) = (0, 0, 0);
    let end = end.min(data.len());
    // Counters of a byte each: the compiler counts sixteen bytes at once.
    for piece in data[start.min(end)..end].chunks(255) {
        let (mut braces, mut brackets, mut separators) = (0u8, 0u8, 0u8);
        for &byte in piece {
            braces += u8::from(byte == b'{');
            brackets += u8::from(byte == b'[');
            separators += u8::from(byte == b',');
        }
        objects += usize::from(braces);
        lists += usize::from(brackets);
        commas += usize::from(separators);
    }
    (objects, lists, commas)
}

/// How many numbers in JSON `data` may end in an exponent beyond 28 or below -28, strings included.
#[pyfunction]
pub fn count_extremes(data: &[u8]) -> usize {
    const ENDS: [&[u8]; 8] = [b"-3", b"-29", b"+28", b"+29", b"+30", b"28", b"29", b"30"];
    let is_exponent = |at: usize| data[at] == b'e' && data[at - 1].is_ascii_digit();
    (1..data.len()).filter(|&at| is_exponent(at) && ENDS.iter().any(|end| data[at + 1..].starts_with(end))).count()
}

/// The lengths of the names and values of `headers`.
#[pyfunction]
pub fn header_bytes(headers: &Bound<'_, PyTuple>) -> PyResult<usize> {
    let mut total = 0;
    for header in headers.iter_borrowed() {
        let header = header.cast::<PyTuple>()?;
        let name = header.get_borrowed_item(0)?;
        let name = name.cast::<PyString>()?;
        // SAFETY: it is a str.
        total += unsafe { ffi::PyUnicode_GetLength(name.as_ptr()) } as usize;
        total += header.get_borrowed_item(1)?.cast::<PyBytes>()?.as_bytes().len();
    }
    Ok(total)
}
