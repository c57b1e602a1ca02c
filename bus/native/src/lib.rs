//! The hot path of sealbus. Every function here has a twin in Python that says the same (`tests/bus/test_native.py`).

mod canonical;
mod casting;
mod counts;
mod encoding;
mod links;
mod outcomes;
mod publishing;
mod records;
mod scalars;
mod sealing;
mod slots;

use pyo3::prelude::*;

/// Whether `data` are proven to be one canonical JSON object (RFC 8785) of at most `room` levels; False says nothing.
#[pyfunction]
fn is_canonical_object(data: &[u8], room: usize) -> bool {
    canonical::is_object(data, room)
}

#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    records::find_neighbours(module)?;
    module.add_function(wrap_pyfunction!(is_canonical_object, module)?)?;
    module.add_function(wrap_pyfunction!(sealing::digest, module)?)?;
    module.add_function(wrap_pyfunction!(sealing::seal_plain, module)?)?;
    module.add_function(wrap_pyfunction!(sealing::seal_caused, module)?)?;
    module.add_function(wrap_pyfunction!(records::write_records, module)?)?;
    module.add_function(wrap_pyfunction!(records::write_batch, module)?)?;
    module.add_function(wrap_pyfunction!(records::read_records, module)?)?;
    module.add_function(wrap_pyfunction!(records::distribute, module)?)?;
    module.add_function(wrap_pyfunction!(outcomes::acknowledge, module)?)?;
    module.add_function(wrap_pyfunction!(records::record_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(records::murmur2_many, module)?)?;
    module.add_function(wrap_pyfunction!(counts::has_long_integer, module)?)?;
    module.add_function(wrap_pyfunction!(counts::count_extremes, module)?)?;
    module.add_function(wrap_pyfunction!(counts::count_marks, module)?)?;
    module.add_function(wrap_pyfunction!(counts::header_bytes, module)?)?;
    module.add_class::<casting::Caster>()?;
    module.add_class::<encoding::Encoder>()?;
    module.add_class::<links::Links>()?;
    module.add_class::<publishing::Sealer>()?;
    module.add_class::<outcomes::Receipts>()?;
    Ok(())
}
