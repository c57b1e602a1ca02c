//! Texts and numbers as RFC 8785 writes them, of objects of exactly those classes.

use pyo3::ffi;

const SAFE_INTEGER: i64 = (1 << 53) - 1;
const LARGEST_NUMBER: f64 = 1e15;
const LARGEST_SHORT: f64 = 1e9;
const PLACES: usize = 4;

/// The UTF-8 of a str, which keeps it; None for any other object and for a text that has none.
///
/// SAFETY: the interpreter is attached, and `subject` is a living object.
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

/// SAFETY: as for `text_of`.
pub unsafe fn put_number(subject: *mut ffi::PyObject, out: &mut Vec<u8>) -> Option<()> {
    // SAFETY: the class is checked.
    unsafe {
        if ffi::PyFloat_CheckExact(subject) == 0 {
            return put_integer(subject, out);
        }
        let number = ffi::PyFloat_AS_DOUBLE(subject);
        // Also false for what is no number.
        (number.abs() < LARGEST_NUMBER).then_some(())?;
        if !put_short_fraction(number, out) {
            out.extend_from_slice(ryu_js::Buffer::new().format_finite(number).as_bytes());
        }
    }
    Some(())
}

/// An int of at most 2^53-1.
///
/// SAFETY: as for `text_of`.
pub unsafe fn integer_of(subject: *mut ffi::PyObject) -> Option<i64> {
    let mut overflow = 0;
    // SAFETY: the class is checked, so that no __index__ of somebody's is called.
    let number = unsafe {
        (ffi::PyLong_CheckExact(subject) != 0).then_some(())?;
        ffi::PyLong_AsLongLongAndOverflow(subject, &raw mut overflow)
    };
    (overflow == 0 && (-SAFE_INTEGER..=SAFE_INTEGER).contains(&number)).then_some(number)
}

/// SAFETY: as for `text_of`.
pub unsafe fn put_integer(subject: *mut ffi::PyObject, out: &mut Vec<u8>) -> Option<()> {
    // SAFETY: said above.
    let number = unsafe { integer_of(subject) }?;
    if number < 0 {
        out.push(b'-');
    }
    put_digits(number.unsigned_abs(), out);
    Some(())
}
