//! What `zfs ls -d` and the like ask the program `zfs-fuse` for, which they start for that: files of a pool that is not imported.
//! The words are between these two programs of one version, and may change.

use api::FileWanted;

/// First argument of the program then.
pub const ARGUMENT: &str = "--read-unimported";

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What is wanted.
    pub wanted: FileWanted,
    /// File system or snapshot.
    pub dataset: String,
    /// Path in it.
    pub path: String,
    /// Where the key is, if not where the property `keylocation` says.
    pub key_location: Option<String>,
    /// Folders, devices and images.
    pub places: Vec<String>,
}

const WANTED: [(FileWanted, &str); 4] = [
    (FileWanted::Names, "names"),
    (FileWanted::Details, "details"),
    (FileWanted::Content, "content"),
    (FileWanted::Archive, "archive"),
];

impl Ask {
    /// The arguments behind [`ARGUMENT`].
    pub fn words(&self) -> Vec<String> {
        let wanted = WANTED.iter().find(|(w, _)| *w == self.wanted);
        let mut words = vec![
            wanted.map_or("", |(_, word)| word).to_string(),
            self.dataset.clone(),
            self.path.clone(),
            self.key_location.clone().unwrap_or_default(),
        ];
        words.extend(self.places.iter().cloned());
        words
    }

    /// The request of such arguments.
    pub fn from_words(words: &[String]) -> Option<Ask> {
        let [wanted, dataset, path, location, places @ ..] = words else {
            return None;
        };
        let wanted = WANTED.iter().find(|(_, word)| word == wanted)?.0;
        Some(Ask {
            wanted,
            dataset: dataset.clone(),
            path: path.clone(),
            key_location: (!location.is_empty()).then(|| location.clone()),
            places: places.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_words_and_back() {
        for (wanted, _) in WANTED {
            for key_location in [None, Some("file:///k".to_string())] {
                let ask = Ask {
                    wanted,
                    dataset: "p/a@s".into(),
                    path: String::new(),
                    key_location,
                    places: vec!["/dev".into(), "x".into()],
                };
                assert_eq!(Ask::from_words(&ask.words()), Some(ask));
            }
        }
        assert_eq!(Ask::from_words(&["names".to_string()]), None);
    }
}
