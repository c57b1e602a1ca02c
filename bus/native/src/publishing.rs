//! From payloads to sealed records in one step, for what a template can seal: what `producers.publisher` does with `producers.sealing.envelope_template`.

use std::sync::{Mutex, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple, PyType};

use crate::encoding::Encoder;
use crate::records::untrack;
use crate::scalars::{integer_of, text_of};
use crate::sealing::{END, ENTROPY, FRONT, Frame, Keys, Moment, TO_SIGNATURE, ascii, complete};
use crate::slots::Slot;

/// What a record takes in a publisher's buffer besides its key and value.
const BUFFER_OVERHEAD: usize = 64;
/// A buffer that one large message has made larger is not kept.
const MOST_KEPT: usize = 1 << 20;

/// The options of a message in `producers.sealing.options.Outgoing`: those that are filled in, and all others with what they are in every message of a
/// template.
struct DraftShape {
    cls: Py<PyType>,
    payload: Slot,
    conversation_id: Slot,
    idempotency_key: Slot,
    key: Slot,
    ttl_s: Slot,
    others: Vec<(Slot, Py<PyAny>)>,
    /// Whether a payload by itself, without an Outgoing, is as good.
    bare: bool,
}

/// What is filled in for one message. SAFETY: lives no longer than the Outgoing it is of.
struct Opened<'a> {
    payload: *mut ffi::PyObject,
    keys: Keys<'a>,
    ttl: Lifetime,
}

#[derive(Clone, Copy)]
enum Lifetime {
    Usual,
    Ms(i64),
}

impl DraftShape {
    fn of(cls: &Bound<'_, PyType>, others: &Bound<'_, PyDict>, bare: bool) -> PyResult<DraftShape> {
        let slot = |name: &str| Slot::of(cls, &PyString::new(cls.py(), name));
        let others = others
            .iter()
            .map(|(name, value)| Ok((Slot::of(cls, &name.cast_into()?)?, value.unbind())))
            .collect::<PyResult<_>>()?;
        Ok(DraftShape {
            payload: slot("payload")?,
            conversation_id: slot("conversation_id")?,
            idempotency_key: slot("idempotency_key")?,
            key: slot("key")?,
            ttl_s: slot("ttl_s")?,
            others,
            bare,
            cls: cls.clone().unbind(),
        })
    }

    /// What is filled in of `item`, a payload or an Outgoing; None where it has other options.
    ///
    /// SAFETY: `item` is a living object, and lives as long as the result is used.
    unsafe fn open<'a>(&self, item: *mut ffi::PyObject, max_ttl_s: f64) -> Option<Opened<'a>> {
        // SAFETY: the slots are of this class, which is checked first.
        unsafe {
            if ffi::Py_TYPE(item) != self.cls.as_ptr().cast() {
                return self.bare.then_some(Opened { payload: item, keys: Keys::default(), ttl: Lifetime::Usual });
            }
            for (slot, value) in &self.others {
                (slot.read(item)? == value.as_ptr()).then_some(())?;
            }
            let text = |slot: &Slot| -> Option<Option<&'a [u8]>> {
                let content = slot.read(item)?;
                if content == ffi::Py_None() { Some(None) } else { text_of(content).map(Some) }
            };
            let keys =
                Keys { conversation_id: text(&self.conversation_id)?, idempotency_key: text(&self.idempotency_key)?, key: text(&self.key)? };
            Some(Opened { payload: self.payload.read(item)?, keys, ttl: Lifetime::of(self.ttl_s.read(item)?, max_ttl_s)? })
        }
    }
}

impl Lifetime {
    /// A lifetime in seconds, rounded as Python rounds, and at least a millisecond.
    ///
    /// SAFETY: the interpreter is attached, and `content` is a living object.
    unsafe fn of(content: *mut ffi::PyObject, max_ttl_s: f64) -> Option<Lifetime> {
        // SAFETY: the class is checked.
        let ttl_s = unsafe {
            if content == ffi::Py_None() {
                return Some(Lifetime::Usual);
            }
            if ffi::PyFloat_CheckExact(content) != 0 { ffi::PyFloat_AS_DOUBLE(content) } else { integer_of(content)? as f64 }
        };
        (ttl_s > 0.0 && ttl_s <= max_ttl_s).then(|| Lifetime::Ms(((ttl_s * 1000.0).round_ties_even() as i64).max(1)))
    }
}

/// Seals payloads of one type in the name of one publisher.
#[pyclass(frozen)]
pub struct Sealer {
    encoder: Py<Encoder>,
    frame: Py<PyTuple>,
    ttl_ms: i64,
    max_ttl_s: f64,
    max_message_bytes: usize,
    message_type: Py<PyString>,
    topic: Py<PyString>,
    headers: Vec<Py<PyAny>>,
    further_headers: Vec<Py<PyAny>>,
    id_header: Py<PyString>,
    sealed: Py<PyAny>,
    record: Py<PyAny>,
    draft: DraftShape,
    /// Makes the signature of a statement, a text; None: messages are not signed.
    sign: Option<Py<PyAny>>,
    room: Mutex<Vec<u8>>,
}

/// A Sealed, its record, and what that takes in a buffer.
type Made<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, usize);
/// An id, and a key.
type Written<'py> = ([u8; 36], Option<Bound<'py, PyBytes>>);

#[pymethods]
impl Sealer {
    /// `encoder` writes the type's payloads, `frame` are the parts of a `Frame`, `lifetimes` the usual one in ms and the longest in s. `names`
    /// are the message type, the topic, and the headers before and behind that of the id; `kinds` are the classes Sealed and NewRecord; `drafts` are
    /// the class Outgoing, the options that are not filled in with what each is in every message, and whether a payload alone may come, too. `sign`
    /// makes the signature of a statement, where messages are signed.
    #[new]
    #[allow(clippy::type_complexity, clippy::too_many_arguments)]
    fn new<'py>(
        encoder: Py<Encoder>,
        frame: Bound<'py, PyTuple>,
        lifetimes: (i64, f64),
        max_message_bytes: usize,
        names: (Bound<'py, PyString>, Bound<'py, PyString>, Bound<'py, PyTuple>, Bound<'py, PyTuple>),
        kinds: (Bound<'py, PyType>, Bound<'py, PyType>),
        drafts: (Bound<'py, PyType>, Bound<'py, PyDict>, bool),
        sign: Option<Py<PyAny>>,
    ) -> PyResult<Sealer> {
        Frame::of(&frame)?;
        let (message_type, topic, headers, further_headers) = names;
        Ok(Sealer {
            encoder,
            id_header: PyString::new(frame.py(), "sb-id").unbind(),
            frame: frame.unbind(),
            ttl_ms: lifetimes.0,
            max_ttl_s: lifetimes.1,
            max_message_bytes,
            message_type: message_type.unbind(),
            topic: topic.unbind(),
            headers: headers.iter().map(Bound::unbind).collect(),
            further_headers: further_headers.iter().map(Bound::unbind).collect(),
            sealed: kinds.0.into_any().unbind(),
            record: kinds.1.into_any().unbind(),
            draft: DraftShape::of(&drafts.0, &drafts.1, drafts.2)?,
            sign,
            room: Mutex::default(),
        })
    }

    /// The Sealed of one payload or Outgoing; None for what has to go the general way.
    fn one<'py>(&self, py: Python<'py>, item: &Bound<'py, PyAny>, now_ms: i64, entropy: &[u8]) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(moment) = Moment::of(now_ms, self.ttl_ms) else { return Ok(None) };
        Ok(self.make(py, item, &moment, entropy)?.map(|(sealed, _, _)| sealed))
    }

    /// Of `items` from `start` on as many as `entropy` is for, as can be sealed here, and as fit `room` bytes (the last one may exceed it):
    /// their Sealed, their records, and what they take in a buffer.
    fn many<'py>(
        &self,
        py: Python<'py>,
        items: &Bound<'py, PyAny>,
        start: usize,
        room: usize,
        now_ms: i64,
        entropy: &[u8],
    ) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>, usize)> {
        let (sealed, records) = (PyList::empty(py), PyList::empty(py));
        let mut size = 0;
        let Some(moment) = Moment::of(now_ms, self.ttl_ms) else { return Ok((sealed, records, size)) };
        let at = |place: usize| -> PyResult<Bound<'py, PyAny>> {
            match items.cast_exact::<PyList>() {
                Ok(list) => list.get_item(place),
                Err(_) => items.cast_exact::<PyTuple>()?.get_item(place),
            }
        };
        let length = items.len()?;
        for (place, piece) in (start..length).zip(entropy.chunks_exact(ENTROPY)) {
            // A type's own code may have taken items away.
            let Ok(item) = at(place) else { break };
            let Some((each, record, takes)) = self.make(py, &item, &moment, piece)? else { break };
            sealed.append(each)?;
            records.append(record)?;
            size += takes;
            if size >= room {
                break;
            }
        }
        Ok((sealed, records, size))
    }
}

impl Sealer {
    fn make<'py>(&self, py: Python<'py>, item: &Bound<'py, PyAny>, moment: &Moment, entropy: &[u8]) -> PyResult<Option<Made<'py>>> {
        // Taken, not borrowed: a type's own code may run before it is given back.
        let mut value = std::mem::take(&mut *self.room.lock().unwrap_or_else(PoisonError::into_inner));
        value.clear();
        value.extend_from_slice(FRONT);
        let made = self.written(item, moment, entropy, &mut value).and_then(|written| match written {
            Some((id, key)) => self.wrapped(py, &id, key, &value).map(Some),
            None => Ok(None),
        });
        if value.capacity() <= MOST_KEPT {
            *self.room.lock().unwrap_or_else(PoisonError::into_inner) = value;
        }
        made
    }

    /// Write the whole message into `value`: its id, and its key if it has one of its own. None for what has to go the general way.
    fn written<'py>(&self, item: &Bound<'py, PyAny>, moment: &Moment, entropy: &[u8], value: &mut Vec<u8>) -> PyResult<Option<Written<'py>>> {
        let py = item.py();
        let mut stated = self.sign.as_ref().map(|_| Vec::with_capacity(768));
        let Some((id, key, data_end)) = self.write(item, moment, entropy, value, stated.as_mut()) else { return Ok(None) };
        if !self.encoder.get().may_be_read(py, &value[FRONT.len()..data_end])? {
            return Ok(None);
        }
        if let (Some(sign), Some(stated)) = (&self.sign, stated) {
            let signature = sign.bind(py).call1((PyBytes::new(py, &stated),))?.cast_into::<PyString>()?;
            value.truncate(value.len() - END.len());
            for part in [TO_SIGNATURE, signature.to_str()?.as_bytes(), END] {
                value.extend_from_slice(part);
            }
            if value.len() > self.max_message_bytes {
                return Ok(None);
            }
        }
        Ok(Some((id, key)))
    }

    fn write<'py>(
        &self,
        item: &Bound<'py, PyAny>,
        moment: &Moment,
        entropy: &[u8],
        value: &mut Vec<u8>,
        stated: Option<&mut Vec<u8>>,
    ) -> Option<([u8; 36], Option<Bound<'py, PyBytes>>, usize)> {
        // SAFETY: `item` keeps what is borrowed from it: no Python code runs in here.
        let Opened { payload, keys, ttl } = unsafe { self.draft.open(item.as_ptr(), self.max_ttl_s) }?;
        let own = match ttl {
            Lifetime::Ms(ttl_ms) if ttl_ms != self.ttl_ms => Some(moment.lasting(ttl_ms)?),
            _ => None,
        };
        let moment = own.as_ref().unwrap_or(moment);
        // SAFETY: the interpreter is attached.
        unsafe { self.encoder.get().write(payload, value) }?;
        let data_end = value.len();
        let frame = self.frame.bind(item.py());
        let frame = Frame::of(frame).ok()?;
        let key = keys.key.or(keys.conversation_id).map(|key| PyBytes::new(item.py(), key));
        let id = complete(value, &frame, moment, entropy, keys, stated)?;
        (value.len() <= self.max_message_bytes).then_some((id, key, data_end))
    }

    /// Without a key of its own, a message has its id for one.
    fn wrapped<'py>(&self, py: Python<'py>, id: &[u8], key: Option<Bound<'py, PyBytes>>, value: &[u8]) -> PyResult<Made<'py>> {
        let id_bytes = PyBytes::new(py, id);
        let key = key.unwrap_or_else(|| id_bytes.clone());
        let name = PyTuple::new(py, [self.id_header.bind(py).as_any(), id_bytes.as_any()])?;
        untrack(&name);
        let bound = |header: &Py<PyAny>| header.bind(py).clone();
        let further = self.further_headers.iter().map(bound);
        let headers = PyTuple::new(py, self.headers.iter().map(bound).chain([name.into_any()]).chain(further).collect::<Vec<_>>())?;
        untrack(&headers);
        let record = self.record.bind(py).call1((self.topic.bind(py), &key, PyBytes::new(py, value), headers))?;
        let sealed = self.sealed.bind(py).call1((ascii(py, id)?, self.message_type.bind(py), &record))?;
        Ok((sealed, record, key.as_bytes().len() + value.len() + BUFFER_OVERHEAD))
    }
}
