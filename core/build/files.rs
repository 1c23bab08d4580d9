//! Source files as the compiler sees them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Source files, each read and parsed once.
#[derive(Clone)]
pub struct Files {
    root: PathBuf,
    parsed: RefCell<HashMap<PathBuf, Rc<syn::File>>>,
}

impl Files {
    /// Those of a folder; paths of files are relative to it.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.into(),
            parsed: RefCell::default(),
        }
    }

    /// The same files, one of them with another text.
    #[cfg(test)]
    pub fn edited(&self, file: &Path, text: &str) -> Result<Self, String> {
        let edited = self.clone();
        let parsed = syn::parse_file(text).map_err(|error| format!("{}: {error}", file.display()))?;
        edited.parsed.borrow_mut().insert(file.into(), Rc::new(parsed));
        Ok(edited)
    }

    /// A file, parsed.
    pub fn parsed(&self, file: &Path) -> Result<Rc<syn::File>, String> {
        if let Some(parsed) = self.parsed.borrow().get(file) {
            return Ok(parsed.clone());
        }
        let wrong = |why: String| format!("{}: {why}", file.display());
        let text = String::from_utf8(self.bytes(file)?).map_err(|error| wrong(error.to_string()))?;
        let parsed = Rc::new(syn::parse_file(&text).map_err(|error| wrong(error.to_string()))?);
        self.parsed.borrow_mut().insert(file.into(), parsed.clone());
        Ok(parsed)
    }

    /// What is in a file.
    pub fn bytes(&self, file: &Path) -> Result<Vec<u8>, String> {
        std::fs::read(self.root.join(file)).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Whether there is such a file.
    pub fn has(&self, file: &Path) -> bool {
        self.root.join(file).is_file()
    }
}
