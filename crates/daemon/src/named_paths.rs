//! The paths of devices, folders and cache files that a request names.
//!
//! The daemon opens them itself. A path may lead through a file system that does not answer: a dead NFS server, a stopped
//! FUSE server. A thread that asks it waits, often unkillably. So a process of its own walks each path first
//! ([`fuse::probe`]), with no lock held, and a request with a path that does not answer is refused.
//!
//! A file system that stops answering between that and the daemon's own look is still waited for.

use admin::Answer;
use api::{ApiError, ImportScan, Props, Request, VdevSpec};
use std::path::Path;

/// Refuses a request that names a path that does not answer.
///
/// # Errors
/// Again, with the path.
pub fn need_answers(request: &Request) -> Answer<()> {
    for path in named(request) {
        fuse::probe(Path::new(path)).map_err(|e| {
            ApiError::sentence(e.kind, e.to_string())
                .hint("try again when that file system answers, or leave the path out")
        })?;
    }
    Ok(())
}

/// The paths a request names, apart from mount points, which are never walked by the daemon.
fn named(request: &Request) -> Vec<&str> {
    let mut out = Vec::new();
    match request {
        Request::PoolCreate(r) => {
            devices(&r.vdevs, &mut out);
            cache_file(&r.props, &mut out);
        }
        Request::PoolAdd(r) => devices(&r.vdevs, &mut out),
        Request::PoolSet { props, .. } => cache_file(props, &mut out),
        Request::VdevSet(r) if r.property == "path" => out.push(&r.value),
        Request::PoolSplit(r) => cache_file(&r.props, &mut out),
        Request::ImportScan(r) => places(r, &mut out),
        Request::PoolImport(r) => {
            places(&r.search, &mut out);
            cache_file(&r.props, &mut out);
        }
        Request::LabelClear { path, .. } => out.push(path),
        Request::DeviceAttach(r) => out.extend(r.new.as_deref()),
        _ => {}
    }
    out.retain(|path| path.starts_with('/'));
    out
}

fn devices<'a>(vdevs: &'a [VdevSpec], out: &mut Vec<&'a str>) {
    for v in vdevs {
        out.extend(v.path.as_deref());
        devices(&v.children, out);
    }
}

fn cache_file<'a>(props: &'a Props, out: &mut Vec<&'a str>) {
    let files = props.iter().filter(|(name, _)| name == "cachefile");
    out.extend(files.map(|(_, path)| path.as_str()));
}

fn places<'a>(scan: &'a ImportScan, out: &mut Vec<&'a str>) {
    out.extend(scan.places.iter().map(String::as_str));
    out.extend(scan.cache_file.as_deref());
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{DeviceAttach, PoolCreate, PoolImport, VdevClass, VdevKind};

    #[test]
    fn the_paths_of_a_request_are_found() {
        let leaf = |path: &str| VdevSpec {
            kind: VdevKind::File,
            class: VdevClass::default(),
            path: Some(path.into()),
            children: Vec::new(),
        };
        let mirror = VdevSpec {
            kind: VdevKind::Mirror,
            path: None,
            children: vec![leaf("/a"), leaf("/b")],
            ..leaf("")
        };
        let props = vec![
            ("cachefile".to_string(), "/c".to_string()),
            ("comment".to_string(), "/d".to_string()),
        ];
        let create = Request::PoolCreate(PoolCreate {
            vdevs: vec![mirror, leaf("/e")],
            props: props.clone(),
            ..PoolCreate::default()
        });
        assert_eq!(named(&create), ["/a", "/b", "/e", "/c"]);
        let import = Request::PoolImport(PoolImport {
            search: ImportScan {
                places: vec!["/f".into()],
                cache_file: Some("/g".into()),
                ..ImportScan::default()
            },
            props: vec![("cachefile".into(), "none".into())],
            ..PoolImport::default()
        });
        assert_eq!(named(&import), ["/f", "/g"]);
        let attach = |new: &str| {
            Request::DeviceAttach(DeviceAttach {
                new: Some(new.into()),
                ..DeviceAttach::default()
            })
        };
        assert_eq!(named(&attach("/h")), ["/h"]);
        // A distributed spare.
        assert!(named(&attach("draid1-0-0")).is_empty());
    }
}
