//! Encrypted file systems among the lives: all encryption roots have one key, which is loaded when a process begins and
//! after each raw receive.

use admin::commands::{told, Commands, ROOT};
use admin::datasets::{create, keys};
use api::{DatasetCreate, Secret};
use base::{Kind, Result};
use dsl::Dataset;
use pool::Pool;

/// The key.
const KEY: [u8; 32] = *b"one key for all encryption roots";

fn secret() -> Secret {
    Secret::new(KEY.to_vec())
}

/// `zfs create`, of an encryption root.
pub fn create_sealed(commands: &Commands, name: &str) -> Result<()> {
    let props = [
        ("recordsize", "4096"),
        ("encryption", "on"),
        ("keyformat", "raw"),
        ("keylocation", "prompt"),
    ];
    let ask = DatasetCreate {
        name: name.into(),
        props: props.map(|(n, v)| (n.into(), v.into())).to_vec(),
        key: Some(secret()),
        command: format!("zfs create {name}"),
        ..DatasetCreate::default()
    };
    let done = create::create(&commands.0, ROOT, &ask);
    done.map(drop).map_err(told)
}

/// `zfs load-key`, of every encryption root that lacks its key. Other threads may load it, or destroy the file system, meanwhile.
pub fn load(commands: &Commands, pool: &Pool) -> Result<()> {
    let (dsl, mut locked) = (pool.dsl(), Vec::new());
    dsl.walk(&dsl.root()?, &mut |dir| {
        let is_root = dir.key_object()?.is_some_and(|k| k.root == dir.object());
        if is_root && dir.key_loaded()? == Some(false) && dir.name() != dsl::RECV {
            locked.push(dir.full_name());
        }
        Ok(())
    })?;
    for name in locked {
        match keys::load(&commands.0, ROOT, &name, &secret(), false).map_err(told) {
            Err(e) if matches!(e.kind, Kind::Exists | Kind::NotFound | Kind::Invalid) => {}
            done => done?,
        }
    }
    Ok(())
}

/// Whether a raw increment to `base` has to be refused where `own`, the same snapshot, is: with other keys or another set of
/// IVs.
pub fn is_misfit(own: &Dataset, base: &Dataset) -> Result<bool> {
    let key = |ds: &Dataset| -> Result<Option<u64>> {
        Ok(ds.dir().key_object()?.map(|k| k.wrapped.guid))
    };
    Ok(key(own)? != key(base)? || own.ivset_guid()? != base.ivset_guid()?)
}
