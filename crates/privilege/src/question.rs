//! Questions to whoever has the rights: what is asked, typed, and how it travels.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use base::{Cause, Error, Kind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::acts::Question;
use crate::chosen::acts;
use crate::path_helper::{Limit, MOST_BYTES, MOST_FILES};

/// The longest path that the kernel walks (`PATH_MAX`, with the end of the text).
const MOST_OF_PATH: usize = 4096;

/// A name or path as it travels.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Raw(Vec<u8>);

impl Raw {
    pub(crate) fn path(&self) -> PathBuf {
        self.name().into()
    }

    pub(crate) fn name(&self) -> OsString {
        OsString::from_vec(self.0.clone())
    }
}

impl<T: AsRef<OsStr> + ?Sized> From<&T> for Raw {
    fn from(t: &T) -> Raw {
        Raw(t.as_ref().as_bytes().to_vec())
    }
}

/// Fields of paths and names, as bytes.
pub(crate) mod raw {
    use super::*;
    use serde::{Deserializer, Serializer};

    pub fn serialize<T: AsRef<OsStr>, S: Serializer>(
        t: &T,
        s: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        Raw::from(t.as_ref()).serialize(s)
    }

    pub fn deserialize<'de, T: From<OsString>, D: Deserializer<'de>>(
        d: D,
    ) -> std::result::Result<T, D::Error> {
        Ok(T::from(Raw::deserialize(d)?.name()))
    }
}

/// An error as it travels.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    errno: i32,
    text: String,
    hidden: bool,
}

impl From<Error> for Told {
    fn from(e: Error) -> Told {
        Told {
            errno: e.kind.errno(),
            text: e.to_string(),
            hidden: e.cause() == Some(Cause::HiddenMountPoint),
        }
    }
}

impl From<Told> for Error {
    fn from(t: Told) -> Error {
        let e = Error::sentence(Kind::from_errno(t.errno), t.text);
        match t.hidden {
            true => e.because(Cause::HiddenMountPoint),
            false => e,
        }
    }
}

/// A question: what a process does for another one.
pub(crate) trait Job: Serialize + DeserializeOwned + Send {
    /// Tells it from others.
    const NAME: &'static str;
    /// What comes back, beside descriptors.
    type Answer: Serialize + DeserializeOwned + Send;

    /// The ordinary user whose path it is.
    fn user(&self) -> Option<u32> {
        None
    }

    /// Does it, with the descriptors that came.
    fn run(self, files: Vec<OwnedFd>) -> Done<Self::Answer>;

    /// The descriptors of an answer got lost.
    fn lost(_answer: &Self::Answer) {}
}

/// An answer with its descriptors, or why there is none.
pub(crate) type Done<A> = (std::result::Result<A, Told>, Vec<OwnedFd>);

/// A job without descriptors in its answer.
pub(crate) fn plain<A>(answer: Result<A>) -> Done<A> {
    (answer.map_err(Told::from), Vec::new())
}

/// Does a job that came as text; none: it is not understood.
pub(crate) fn run<J: Job>(body: &str, files: Vec<OwnedFd>) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let (answer, files) = serde_json::from_str::<J>(body).ok()?.run(files);
    if files.len() > MOST_FILES {
        if let Ok(answer) = &answer {
            J::lost(answer);
        }
        let full = io::Error::from_raw_os_error(libc::EMFILE);
        let failed: std::result::Result<J::Answer, Told> = Err(Error::from(full).into());
        return Some((serde_json::to_vec(&failed).ok()?, Vec::new()));
    }
    Some((serde_json::to_vec(&answer).ok()?, files))
}

/// Has somebody walk `path`, with these descriptors.
///
/// Errors: `NameTooLong`, if the kernel would not walk it; again, if it takes too long or somebody else waits there; those of the
/// job, and of its descriptors.
pub(crate) fn ask<J: Job>(
    path: &Path,
    limit: Limit<'_>,
    job: J,
    files: &[BorrowedFd<'_>],
) -> Result<(J::Answer, Vec<OwnedFd>)> {
    let length = path.as_os_str().len();
    if length >= MOST_OF_PATH {
        let text = format!("a path of {length} bytes is too long");
        return Err(Error::new(Kind::NameTooLong, text));
    }
    let wrong = |e: serde_json::Error| Error::new(Kind::Invalid, e.to_string());
    let question = Question {
        name: J::NAME,
        body: serde_json::to_string(&job).map_err(wrong)?,
        path,
        user: job.user(),
        files,
        limit,
        run: run::<J>,
    };
    if question.body.len() > MOST_BYTES {
        return Err(Error::new(Kind::ArgTooBig, "too long a question"));
    }
    let (bytes, files) = acts().ask(&question)?;
    let answer: std::result::Result<J::Answer, Told> =
        serde_json::from_slice(&bytes).map_err(wrong)?;
    match (answer, files) {
        (Ok(answer), Ok(files)) => Ok((answer, files)),
        (Ok(answer), Err(e)) => {
            J::lost(&answer);
            Err(Error::from(e).context(path.display().to_string()))
        }
        (Err(told), _) => Err(told.into()),
    }
}
