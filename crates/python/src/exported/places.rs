//! Source locations of calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use coremill_pt2::wire::Metadata;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

/// Reads the source locations of calls. Most calls share the text of the previous call, which is
/// then reused.
#[derive(Default)]
pub(super) struct SourceLocations<'py> {
    /// The last stack trace, with its Python object.
    trace: Option<(Bound<'py, PyAny>, Arc<str>)>,
    /// The last module stack, with its Python objects.
    modules: Option<(Vec<ModulePlace<'py>>, Arc<str>)>,
}

/// Key of a module, and the pair of its path and class.
type ModulePlace<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

impl<'py> SourceLocations<'py> {
    /// The location of a call.
    pub(super) fn metadata(&mut self, meta: &Bound<'py, PyDict>) -> PyResult<Metadata> {
        let mut notes = Metadata {
            stack_trace: self.trace(meta)?,
            nn_module_stack: self.modules(meta)?,
            others: BTreeMap::new(),
        };
        if let Some(handle) = noted(meta, intern!(meta.py(), "debug_handle"))? {
            notes.others.insert("debug_handle".to_owned(), handle.str()?.to_cow()?.into());
        }
        Ok(notes)
    }

    fn trace(&mut self, meta: &Bound<'py, PyDict>) -> PyResult<Option<Arc<str>>> {
        let Some(object) = noted(meta, intern!(meta.py(), "stack_trace"))? else {
            return Ok(None);
        };
        if let Some((known, text)) = &self.trace
            && known.is(&object)
        {
            return Ok(Some(text.clone()));
        }
        let mut written = String::new();
        push_text(&mut written, &object)?;
        if written.is_empty() {
            return Ok(None);
        }
        let text = Arc::from(written);
        self.trace = Some((object, Arc::clone(&text)));
        Ok(Some(text))
    }

    fn modules(&mut self, meta: &Bound<'py, PyDict>) -> PyResult<Option<Arc<str>>> {
        let Some(stack) = meta.get_item(intern!(meta.py(), "nn_module_stack"))? else {
            return Ok(None);
        };
        let Ok(stack) = stack.cast::<PyDict>() else { return Ok(None) };
        if let Some((known, text)) = &self.modules
            && known.len() == stack.len()
            && known.iter().zip(stack.iter()).all(|(known, (key, place))| {
                // Tuples are immutable.
                known.0.is(&key) && known.1.is(&place) && place.is_exact_instance_of::<PyTuple>()
            })
        {
            return Ok(Some(text.clone()));
        }
        let mut written = String::new();
        for (key, place) in stack.iter() {
            let (path, class): (Bound<'_, PyAny>, Bound<'_, PyAny>) = place.extract()?;
            if !written.is_empty() {
                written.push(';');
            }
            push_text(&mut written, &key)?;
            written.push(',');
            push_text(&mut written, &path)?;
            written.push(',');
            // A class, or its name if the program was loaded or decomposed.
            if !class.is_instance_of::<PyString>()
                && let Some(name) = class.getattr_opt(intern!(class.py(), "__qualname__"))?
            {
                push_text(&mut written, &class.getattr(intern!(class.py(), "__module__"))?)?;
                written.push('.');
                push_text(&mut written, &name)?;
            } else {
                push_text(&mut written, &class)?;
            }
        }
        if written.is_empty() {
            return Ok(None);
        }
        let text = Arc::from(written);
        self.modules = Some((stack.iter().collect(), Arc::clone(&text)));
        Ok(Some(text))
    }
}

/// The value of a key, without `None`.
fn noted<'py>(
    meta: &Bound<'py, PyDict>,
    key: &Bound<'py, PyString>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(meta.get_item(key)?.filter(|object| !object.is_none()))
}

/// Appends `str(object)`. Strings are appended without a copy.
fn push_text(to: &mut String, object: &Bound<'_, PyAny>) -> PyResult<()> {
    match object.cast::<PyString>() {
        Ok(text) => to.push_str(&text.to_cow()?),
        Err(_) => to.push_str(&object.str()?.to_cow()?),
    }
    Ok(())
}
