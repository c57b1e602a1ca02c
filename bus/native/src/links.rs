//! Links of proof chains: their form, what `bus.protocol.envelope_rules` looks at, and the rules between them, what `bus.protocol.proof_chain` does.
//!
//! Says yes and never no: `false` says nothing, and Python finds out what is wrong, or that nothing is.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

use crate::canonical::put_string;
use crate::scalars::{integer_of, text_of};
use crate::sealing::{HASH_LENGTH, MAX_TEXT, hash, parse_ms};
use crate::slots::Slot;

const MAX_LINKS: i64 = 16;
const MAX_PARENTS: usize = 16;
const MAX_ID: usize = 128;
const MAX_TYPE: usize = 120;
const MAX_NAMESPACE: usize = 63;
const PROTOCOL: &[u8] = b"sealbus/1";

/// Where `bus.protocol.envelope.Statement` keeps its fields.
struct StatementShape {
    cls: Py<PyType>,
    addressee: Py<PyType>,
    addressee_id: Slot,
    addressee_role: Slot,
    authority: Slot,
    content_hash: Slot,
    data_classification: Slot,
    envelope_hash: Slot,
    hops: Slot,
    links: Slot,
    message_id: Slot,
    message_type: Slot,
    namespace: Slot,
    parents: Slot,
    protocol: Slot,
    recipient: Slot,
    sender: Slot,
    timestamp: Slot,
    trust_level: Slot,
}

/// A statement of right form, borrowed from its Struct.
struct Statement<'a> {
    content_hash: &'a [u8],
    data_classification: Option<&'a [u8]>,
    envelope_hash: &'a [u8],
    hops: i64,
    links: Option<i64>,
    message_id: &'a [u8],
    message_type: &'a [u8],
    namespace: &'a [u8],
    parents: Vec<&'a [u8]>,
    recipient: Option<Recipient<'a>>,
    sender: &'a [u8],
    timestamp: &'a [u8],
    sealed_ms: i64,
    trust_level: Option<&'a [u8]>,
}

/// Whom a message is for.
enum Recipient<'a> {
    Id(&'a [u8]),
    Role(&'a [u8]),
}

impl StatementShape {
    fn of(cls: &Bound<'_, PyType>, addressee: &Bound<'_, PyType>) -> PyResult<StatementShape> {
        let slot = |name: &str| Slot::of(cls, &PyString::new(cls.py(), name));
        Ok(StatementShape {
            addressee_id: Slot::of(addressee, &PyString::new(cls.py(), "id"))?,
            addressee_role: Slot::of(addressee, &PyString::new(cls.py(), "role"))?,
            addressee: addressee.clone().unbind(),
            authority: slot("authority")?,
            content_hash: slot("content_hash")?,
            data_classification: slot("data_classification")?,
            envelope_hash: slot("envelope_hash")?,
            hops: slot("hops")?,
            links: slot("links")?,
            message_id: slot("message_id")?,
            message_type: slot("message_type")?,
            namespace: slot("namespace")?,
            parents: slot("parents")?,
            protocol: slot("protocol")?,
            recipient: slot("recipient")?,
            sender: slot("sender")?,
            timestamp: slot("timestamp")?,
            trust_level: slot("trust_level")?,
            cls: cls.clone().unbind(),
        })
    }

    /// What `subject` says, if it is a statement of right form.
    ///
    /// SAFETY: the interpreter is attached, and `subject` is a living object that outlives the result.
    unsafe fn open<'a>(&self, subject: *mut ffi::PyObject) -> Option<Statement<'a>> {
        // SAFETY: the class is checked before the slots are read; what they hold is kept by the Struct, which is frozen.
        unsafe {
            (ffi::Py_TYPE(subject) == self.cls.as_ptr().cast()).then_some(())?;
            let text = |slot: &Slot| text_of(slot.read(subject)?);
            let given = |slot: &Slot| -> Option<Option<*mut ffi::PyObject>> {
                let content = slot.read(subject)?;
                Some((content != ffi::Py_None()).then_some(content))
            };
            // What may be of any depth is Python's to write.
            given(&self.authority)?.is_none().then_some(())?;
            let timestamp = text(&self.timestamp)?;
            let statement = Statement {
                content_hash: text(&self.content_hash).filter(|text| is_hash(text))?,
                data_classification: match given(&self.data_classification)? {
                    Some(content) => Some(text_of(content)?),
                    None => None,
                },
                envelope_hash: text(&self.envelope_hash).filter(|text| is_hash(text))?,
                hops: integer_of(self.hops.read(subject)?).filter(|&hops| hops >= 0)?,
                links: match given(&self.links)? {
                    Some(content) => Some(integer_of(content).filter(|links| (1..=MAX_LINKS).contains(links))?),
                    None => None,
                },
                message_id: text(&self.message_id).filter(|text| is_message_id(text))?,
                message_type: text(&self.message_type).filter(|text| is_message_type(text))?,
                namespace: text(&self.namespace).filter(|text| text.len() <= MAX_NAMESPACE && is_segment(text))?,
                parents: match given(&self.parents)? {
                    Some(content) => seals_of(content)?,
                    None => Vec::new(),
                },
                recipient: match given(&self.recipient)? {
                    Some(content) => Some(self.recipient_of(content)?),
                    None => None,
                },
                sender: text(&self.sender).filter(|text| is_plain_id(text))?,
                timestamp,
                sealed_ms: parse_ms(timestamp)?,
                trust_level: match given(&self.trust_level)? {
                    Some(content) => Some(text_of(content)?),
                    None => None,
                },
            };
            (text(&self.protocol)? == PROTOCOL).then_some(statement)
        }
    }

    /// SAFETY: as for `open`.
    unsafe fn recipient_of<'a>(&self, subject: *mut ffi::PyObject) -> Option<Recipient<'a>> {
        // SAFETY: the class is checked before the slots are read; what they hold is kept by the Struct, which is frozen.
        unsafe {
            (ffi::Py_TYPE(subject) == self.addressee.as_ptr().cast()).then_some(())?;
            let (id, role) = (self.addressee_id.read(subject)?, self.addressee_role.read(subject)?);
            match (id == ffi::Py_None(), role == ffi::Py_None()) {
                (false, true) => text_of(id).filter(|text| is_plain_id(text)).map(Recipient::Id),
                (true, false) => text_of(role).filter(|text| is_plain_id(text)).map(Recipient::Role),
                _ => None,
            }
        }
    }
}

fn is_hash(text: &[u8]) -> bool {
    text.len() == HASH_LENGTH && text.starts_with(b"sha256:") && text[7..].iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_message_id(text: &[u8]) -> bool {
    (1..=MAX_ID).contains(&text.len()) && text.iter().all(|byte| (0x21..=0x7e).contains(byte))
}

/// `[a-z][a-z0-9]*(-[a-z0-9]+)*`
fn is_segment(text: &[u8]) -> bool {
    text.first().is_some_and(u8::is_ascii_lowercase)
        && text.split(|&byte| byte == b'-').all(|part| !part.is_empty() && part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'z')))
}

fn is_message_type(text: &[u8]) -> bool {
    text.len() <= MAX_TYPE && text.split(|&byte| byte == b'.').all(is_segment) && text.rsplit(|&byte| byte == b'.').next() != Some(b"dlq")
}

/// A text id of ASCII.
fn is_plain_id(text: &[u8]) -> bool {
    (1..=MAX_TEXT).contains(&text.len()) && text.iter().all(|byte| (0x20..0x7f).contains(byte))
}

/// SAFETY: as for `StatementShape::open`.
unsafe fn seals_of<'a>(subject: *mut ffi::PyObject) -> Option<Vec<&'a [u8]>> {
    // SAFETY: the class is checked; a tuple keeps its items.
    unsafe {
        (ffi::PyTuple_CheckExact(subject) != 0).then_some(())?;
        let count = ffi::PyTuple_GET_SIZE(subject);
        let seals = (0..count).map(|place| text_of(ffi::PyTuple_GET_ITEM(subject, place))).collect::<Option<Vec<_>>>()?;
        let are_seals = (1..=MAX_PARENTS).contains(&seals.len()) && seals.iter().all(|seal| is_hash(seal));
        let differ = seals.iter().enumerate().all(|(place, seal)| !seals[..place].contains(seal));
        (are_seals && differ).then_some(seals)
    }
}

impl Statement<'_> {
    /// What its seal is the digest of.
    fn write(&self, out: &mut Vec<u8>) {
        let mut put = |name: &[u8], text: &[u8]| {
            out.extend_from_slice(name);
            put_string(text, out);
        };
        let links = self.links.map_or_else(String::new, |links| format!(",\"links\":{links}"));
        let counts = format!(",\"hops\":{}{links},\"message_id\":", self.hops);
        put(b"{\"content_hash\":", self.content_hash);
        if let Some(level) = self.data_classification {
            put(b",\"data_classification\":", level);
        }
        put(b",\"envelope_hash\":", self.envelope_hash);
        put(counts.as_bytes(), self.message_id);
        put(b",\"message_type\":", self.message_type);
        put(b",\"namespace\":", self.namespace);
        for (place, seal) in self.parents.iter().enumerate() {
            put(if place == 0 { b",\"parents\":[" } else { b"," }, seal);
        }
        put(if self.parents.is_empty() { b",\"protocol\":" } else { b"],\"protocol\":" }, PROTOCOL);
        let closing: &[u8] = match self.recipient {
            Some(Recipient::Id(id)) => {
                put(b",\"recipient\":{\"id\":", id);
                b"},\"sender\":"
            }
            Some(Recipient::Role(role)) => {
                put(b",\"recipient\":{\"role\":", role);
                b"},\"sender\":"
            }
            None => b",\"sender\":",
        };
        put(closing, self.sender);
        put(b",\"timestamp\":", self.timestamp);
        if let Some(level) = self.trust_level {
            put(b",\"trust_level\":", level);
        }
        out.push(b'}');
    }

    /// Whether `sender` may go on from this one: it was addressed, or goes on from what it said itself.
    fn is_for(&self, sender: &[u8]) -> bool {
        match self.recipient {
            Some(Recipient::Id(id)) => id == sender || self.sender == sender,
            _ => true,
        }
    }

    /// Whether a message that says `successor` may rest on this one.
    fn precedes(&self, successor: &Statement<'_>, backwards_ms: i64, room: &mut Vec<u8>) -> bool {
        room.clear();
        self.write(room);
        (self.hops == 0) == self.parents.is_empty()
            && self.namespace == successor.namespace
            && self.hops + 1 == successor.hops
            && successor.parents.first().is_some_and(|seal| **seal == hash(&[room]))
            && successor.links == Some(MAX_LINKS.min(self.links.unwrap_or(0) + 1))
            && self.sealed_ms <= successor.sealed_ms + backwards_ms
            && self.is_for(successor.sender)
    }
}

/// Looks at chains of `bus.protocol.envelope.Link`.
#[pyclass(frozen)]
pub struct Links {
    cls: Py<PyType>,
    signature: Slot,
    statement: Slot,
    shape: StatementShape,
}

#[pymethods]
impl Links {
    #[new]
    fn new(link: &Bound<'_, PyType>, statement: &Bound<'_, PyType>, addressee: &Bound<'_, PyType>) -> PyResult<Links> {
        let slot = |name: &str| Slot::of(link, &PyString::new(link.py(), name));
        let (signature, shape) = (slot("signature")?, StatementShape::of(statement, addressee)?);
        Ok(Links { signature, statement: slot("statement")?, shape, cls: link.clone().unbind() })
    }

    /// Whether every link of `chain` is proven to have its form.
    fn have_form(&self, chain: &Bound<'_, PyTuple>) -> bool {
        self.open(chain).is_some()
    }

    /// Whether `chain` is proven to be that of a message that says `statement`, whose cause is `cause_id`, whoever signed it.
    fn hold(
        &self,
        chain: &Bound<'_, PyTuple>,
        statement: &Bound<'_, PyAny>,
        cause_id: &Bound<'_, PyAny>,
        backwards_ms: i64,
        age_ms: i64,
    ) -> bool {
        // SAFETY: the interpreter is attached, and the arguments outlive what is borrowed of them here.
        let (Some(links), Some(own), Some(cause)) = (self.open(chain), unsafe { self.shape.open(statement.as_ptr()) }, unsafe {
            text_of(cause_id.as_ptr())
        }) else {
            return false;
        };
        let mut room = Vec::with_capacity(1_024);
        let all = || links.iter().chain([&own]);
        links.last().is_some_and(|newest| newest.message_id == cause)
            && all().enumerate().all(|(place, each)| links[..place].iter().all(|before| before.message_id != each.message_id))
            && all().zip(all().skip(1)).all(|(link, successor)| link.precedes(successor, backwards_ms, &mut room))
            && links.iter().all(|link| link.sealed_ms >= own.sealed_ms - age_ms)
    }
}

impl Links {
    fn open<'a>(&self, chain: &'a Bound<'_, PyTuple>) -> Option<Vec<Statement<'a>>> {
        // SAFETY: the class of each link is checked before its slots are read, and the tuple keeps it.
        unsafe {
            (0..ffi::PyTuple_GET_SIZE(chain.as_ptr()))
                .map(|place| {
                    let link = ffi::PyTuple_GET_ITEM(chain.as_ptr(), place);
                    (ffi::Py_TYPE(link) == self.cls.as_ptr().cast()).then_some(())?;
                    let signature = self.signature.read(link)?;
                    (signature == ffi::Py_None() || !text_of(signature)?.is_empty()).then_some(())?;
                    self.shape.open(self.statement.read(link)?)
                })
                .collect()
        }
    }
}
