//! Operations on names: making, removing, linking; and fsync of one file.

use super::*;

impl Model {
    pub(super) fn create_file(&mut self, fs: &Fs) {
        let path = self.new_path();
        if self.now().contains_key(&path) {
            return;
        }
        let Some(dir) = self.found(fs, split(&path).0) else {
            return;
        };
        let new = New::file(0o100600, 0);
        let r = fs
            .zfs
            .create(&dir, split(&path).1.as_bytes(), &new, &Cred::root());
        if self.done(r.map(|_| ())) {
            let id = self.files.len();
            let s = FileState {
                mode: 0o600,
                ..FileState::default()
            };
            self.files.push(File {
                states: vec![(self.op, Arc::new(s))],
                renames: Vec::new(),
            });
            self.change_names(|m| {
                m.insert(path, Node::File(id));
            });
        }
    }

    pub(super) fn unlink(&mut self, fs: &Fs) {
        let rng = self.rng.clone();
        let Some(path) = self.any(|n| *n != Node::Dir) else {
            return;
        };
        let Some(dir) = self.found(fs, split(&path).0) else {
            return;
        };
        let hold = rng.below(4) == 0;
        let Some(z) = self.found(fs, &path) else {
            return;
        };
        let r = fs
            .zfs
            .unlink(&dir, split(&path).1.as_bytes(), &Cred::root());
        if hold {
            self.held.push(z);
        } else {
            drop(z);
            let reaped = fs.zfs.reap();
            self.done(reaped);
        }
        if self.done(r) {
            self.change_names(|m| {
                m.remove(&path);
            });
        }
    }

    pub(super) fn make_directory(&mut self, fs: &Fs) {
        let path = self.new_path();
        if self.now().contains_key(&path) {
            return;
        }
        let Some(dir) = self.found(fs, split(&path).0) else {
            return;
        };
        let new = New::dir(0o755, 0);
        let r = fs
            .zfs
            .create(&dir, split(&path).1.as_bytes(), &new, &Cred::root());
        if self.done(r.map(|_| ())) {
            self.change_names(|m| {
                m.insert(path, Node::Dir);
            });
        }
    }

    pub(super) fn remove_directory(&mut self, fs: &Fs) {
        let Some(path) = self.any(|n| *n == Node::Dir) else {
            return;
        };
        if self
            .now()
            .keys()
            .any(|p| p.starts_with(&format!("{path}/")))
        {
            return;
        }
        let Some(dir) = self.found(fs, split(&path).0) else {
            return;
        };
        let r = fs.zfs.rmdir(&dir, split(&path).1.as_bytes(), &Cred::root());
        if self.done(r) {
            self.change_names(|m| {
                m.remove(&path);
            });
        }
    }

    pub(super) fn symlink(&mut self, fs: &Fs) {
        let rng = self.rng.clone();
        let path = self.new_path();
        if self.now().contains_key(&path) {
            return;
        }
        let target = "t".repeat(1 + rng.below(200) as usize);
        let Some(dir) = self.found(fs, split(&path).0) else {
            return;
        };
        let new = New::symlink(target.as_bytes());
        let r = fs
            .zfs
            .create(&dir, split(&path).1.as_bytes(), &new, &Cred::root());
        if self.done(r.map(|_| ())) {
            self.change_names(|m| {
                m.insert(path, Node::Link(target));
            });
        }
    }

    pub(super) fn link(&mut self, fs: &Fs) {
        let (Some(from), to) = (self.any(|n| matches!(n, Node::File(_))), self.new_path()) else {
            return;
        };
        if self.now().contains_key(&to) {
            return;
        }
        let Some(z) = self.found(fs, &from) else {
            return;
        };
        let Some(dir) = self.found(fs, split(&to).0) else {
            return;
        };
        let r = fs
            .zfs
            .link(&z, &dir, split(&to).1.as_bytes(), &Cred::root());
        if self.done(r) {
            let node = self.now()[&from].clone();
            self.change_names(|m| {
                m.insert(to, node);
            });
        }
    }

    pub(super) fn fsync_one(&mut self, fs: &Fs) {
        let Some(path) = self.any(|n| matches!(n, Node::File(_))) else {
            return;
        };
        let Node::File(id) = self.now()[&path] else {
            return;
        };
        let Some(z) = self.found(fs, &path) else {
            return;
        };
        let r = fs.zfs.fsync(Some(&z));
        self.promised(Some(id), r);
    }
}
