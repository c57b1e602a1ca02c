//! What became of records: an outcome in each one's place, and the receipts that publishers get for them.

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyString, PyType};

use crate::slots::Slot;

/// Put `kind(topic, partition, offset, timestamp_ms)` of records written one after the other into their places among `outcomes`, where
/// nothing is yet; how many those were.
#[pyfunction]
pub fn acknowledge<'py>(
    outcomes: &Bound<'py, PyList>,
    indices: &Bound<'py, PyList>,
    kind: &Bound<'py, PyAny>,
    topic: &Bound<'py, PyString>,
    partition: &Bound<'py, PyInt>,
    offset: i64,
    timestamp_ms: &Bound<'py, PyInt>,
) -> PyResult<usize> {
    let mut set = 0;
    for (offset, index) in (offset..).zip(indices.iter()) {
        let index = index.extract::<usize>()?;
        if outcomes.get_item(index)?.is_none() {
            outcomes.set_item(index, kind.call1((topic, partition, offset, timestamp_ms))?)?;
            set += 1;
        }
    }
    Ok(set)
}

/// Makes receipts: of a class, for messages of another one that have an `id` each, from outcomes of a third one.
#[pyclass(frozen)]
pub struct Receipts {
    kind: Py<PyType>,
    sealed: Py<PyType>,
    appended: Py<PyType>,
    id: Slot,
    places: Vec<Slot>,
}

#[pymethods]
impl Receipts {
    #[new]
    fn new(kind: Bound<'_, PyType>, sealed: Bound<'_, PyType>, appended: Bound<'_, PyType>) -> PyResult<Receipts> {
        let slot = |cls: &Bound<'_, PyType>, name: &str| Slot::of(cls, &PyString::new(cls.py(), name));
        Ok(Receipts {
            id: slot(&sealed, "message_id")?,
            places: ["topic", "partition", "offset", "timestamp_ms"].iter().map(|name| slot(&appended, name)).collect::<PyResult<_>>()?,
            kind: kind.unbind(),
            sealed: sealed.unbind(),
            appended: appended.unbind(),
        })
    }

    /// `kind(message_id, topic, partition, offset, timestamp_ms)` for each of `sealed`; None where one of `outcomes` tells of a failure, or
    /// where either is no list.
    fn of<'py>(&self, py: Python<'py>, sealed: &Bound<'py, PyAny>, outcomes: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyList>>> {
        let (Ok(sealed), Ok(outcomes)) = (sealed.cast_exact::<PyList>(), outcomes.cast_exact::<PyList>()) else { return Ok(None) };
        let receipts = PyList::empty(py);
        if sealed.len() != outcomes.len() {
            return Ok(None);
        }
        for (each, outcome) in sealed.iter().zip(outcomes.iter()) {
            if each.get_type_ptr() != self.sealed.as_ptr().cast() || outcome.get_type_ptr() != self.appended.as_ptr().cast() {
                return Ok(None);
            }
            // SAFETY: both are of the classes that the slots are of, and kept here; what is read gets a reference of its own.
            let read = |subject: &Bound<'py, PyAny>, slot: &Slot| unsafe {
                slot.read(subject.as_ptr()).map(|content| Bound::from_borrowed_ptr(py, content))
            };
            let Some(id) = read(&each, &self.id) else { return Ok(None) };
            let [Some(topic), Some(partition), Some(offset), Some(timestamp_ms)] = [0, 1, 2, 3].map(|at| read(&outcome, &self.places[at])) else {
                return Ok(None);
            };
            receipts.append(self.kind.bind(py).call1((id, topic, partition, offset, timestamp_ms))?)?;
        }
        Ok(Some(receipts))
    }
}
