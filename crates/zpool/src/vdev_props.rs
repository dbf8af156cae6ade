//! `zpool get` and `zpool set` with vdevs.

use crate::common;
use crate::status::json::vdev_info;
use api::{Answer, PoolGet, Reply, Request, Select, Vdev, VdevGet, VdevProps, VdevSet};
use cli::get::Field;
use cli::json::{envelope, property, Object, Put, Style};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

/// All vdevs but the root.
const ALL: &str = "all-vdevs";
/// Name of the root vdev.
const ROOT: &str = "root-0";

/// Pool and vdevs, if the operands behind the list of properties are such: the first is a pool, and of the others not all are.
pub fn asked(words: &[String], cx: &mut Cx<'_>) -> Result<Option<(String, Vec<String>)>, Fail> {
    let Some((pool, vdevs)) = words.split_first().filter(|(_, v)| !v.is_empty()) else {
        return Ok(None);
    };
    let get = PoolGet {
        pools: words.to_vec(),
        ..PoolGet::default()
    };
    let known = match cx.ask(&Request::PoolGet(get)) {
        Ok(Reply::Pools(known)) => known,
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => return Err(cx.fail_plain(&e)),
    };
    let is_pool = |name: &String| known.found.iter().any(|p| p.name == *name);
    Ok((is_pool(pool) && !vdevs.iter().all(is_pool)).then(|| (pool.clone(), vdevs.to_vec())))
}

/// What `zpool get` prints.
pub struct Form {
    /// Columns.
    pub fields: Vec<Field>,
    /// Numbers as they are.
    pub exact: bool,
    /// JSON is wanted.
    pub json: Option<Style>,
}

/// `zpool get` of vdevs.
pub fn get(
    args: &Parsed,
    list: &str,
    (pool, vdevs): (&str, &[String]),
    form: &Form,
    cx: &mut Cx<'_>,
) -> Outcome {
    let props = select(list)?;
    let found = ask(pool, vdevs, &props, cx)?;
    if let Some(style) = form.json {
        return report(&found, style, form.exact, cx);
    }
    let mut rows = Vec::new();
    for v in &found {
        for p in v.props.iter().filter(|p| p.name != "name") {
            rows.push(cli::get::Row {
                name: name(&v.vdev),
                property: p.name.clone(),
                value: cli::value::vdev(&p.name, &p.value, form.exact, &cx.zone),
                received: "-".into(),
                source: cli::value::source(&p.source),
            });
        }
    }
    if rows.is_empty() {
        return Ok(0);
    }
    let asked: Vec<&cli::props::Info> = match &props {
        Select::These(names) => names.iter().filter_map(|n| cli::props::vdev(n)).collect(),
        _ => cli::props::VDEV.iter().filter(|p| p.visible).collect(),
    };
    write!(
        cx.out,
        "{}",
        cli::get::render(&rows, &form.fields, &asked, args.has("H"))
    )?;
    Ok(0)
}

fn select(list: &str) -> Result<Select, Fail> {
    if list == "all" {
        return Ok(Select::All);
    }
    let mut names = Vec::new();
    for word in list.split(',') {
        let known = match cli::props::vdev(word) {
            Some(info) => Some(info.name.to_string()),
            None => cli::props::is_user_property(word).then(|| word.to_string()),
        };
        names.push(
            known.ok_or_else(|| {
                Fail::Usage(format!("bad property list: invalid property '{word}'"))
            })?,
        );
    }
    Ok(Select::These(names))
}

fn ask(
    pool: &str,
    vdevs: &[String],
    props: &Select,
    cx: &mut Cx<'_>,
) -> Result<Vec<VdevProps>, Fail> {
    let all = vdevs.len() == 1 && vdevs[0] == ALL;
    let request = Request::VdevGet(VdevGet {
        pool: pool.into(),
        vdevs: if all { Vec::new() } else { vdevs.to_vec() },
        props: props.clone(),
    });
    let Answer { found, failed } = match cx.ask(&request) {
        Ok(Reply::VdevProps(answer)) => answer,
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => return Err(cx.fail_plain(&e)),
    };
    if failed.is_empty() {
        return Ok(found);
    }
    let mut text = format!("Expected a list of vdevs in \"{pool}\", but got:");
    for (name, _) in &failed {
        text.push_str(&format!("\n\t\"{name}\""));
    }
    Err(Fail::Usage(text))
}

/// What a vdev is called in the NAME column.
fn name(vdev: &Vdev) -> String {
    let how = cli::vdevs::Naming {
        numbered: true,
        ..cli::vdevs::Naming::default()
    };
    cli::vdevs::name(vdev, ROOT, how)
}

fn report(found: &[VdevProps], style: Style, exact: bool, cx: &mut Cx<'_>) -> Outcome {
    let mut report = envelope("zpool get");
    let mut all = Object::new();
    for v in found {
        let called = name(&v.vdev);
        let mut o = vdev_info(&v.vdev, &called, style);
        let mut out = Object::new();
        for p in &v.props {
            let text = cli::value::vdev(&p.name, &p.value, exact, &cx.zone);
            out.put(p.name.as_str(), property(style.text(text), &p.source));
        }
        o.put("properties", out);
        all.put(called, o);
    }
    report.put("vdevs", all);
    common::print_json(cx, report)?;
    Ok(0)
}

/// `zpool set` of a vdev.
pub fn set(pool: &str, vdev: &str, (name, value): (String, String), cx: &mut Cx<'_>) -> Outcome {
    let known = match cli::props::vdev(&name) {
        Some(info) => info.name.to_string(),
        None if cli::props::is_user_property(&name) => name,
        None => {
            return Err(Fail::Error(format!(
                "cannot set property {name} for {vdev} on {pool}: invalid property '{name}'"
            )))
        }
    };
    let request = Request::VdevSet(VdevSet {
        pool: pool.into(),
        vdev: vdev.into(),
        property: known,
        value,
        command: cx.command(),
    });
    common::done(cx, &request, "set property for", vdev)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use crate::testing::{leaf, run, sample, Fake};
    use api::{Prop, Request, Select, Source, VdevClass, VdevGet, VdevProps, VdevSet};

    #[test]
    fn gets() {
        let mut fake = Fake::with(vec![sample("tank")]);
        fake.vdevs = vec![VdevProps {
            vdev: leaf("/dev/sda", VdevClass::Normal),
            props: vec![
                Prop::new("asize", 1u64 << 30, Source::None),
                Prop::new("io_n", u64::MAX, Source::Default),
                Prop::new("comment", "slot 7", Source::Local),
            ],
        }];
        let (status, out, err) = run("get asize,io_n,comment tank all-vdevs", &mut fake);
        assert_eq!((status, &*err), (0, ""));
        assert_eq!(
            out,
            "NAME  PROPERTY  VALUE    SOURCE\n\
             sda   asize     1G       -\n\
             sda   io_n      -        default\n\
             sda   comment   slot 7   local\n"
        );
        assert_eq!(
            fake.seen,
            [Request::VdevGet(VdevGet {
                pool: "tank".into(),
                vdevs: vec![],
                props: Select::These(vec!["asize".into(), "io_n".into(), "comment".into()]),
            })]
        );
        let (_, out, _) = run("get -Hp -o value asize tank sda", &mut fake);
        assert!(out.starts_with("1073741824\n"), "{out}");
        let (_, out, _) = run("get -j asize tank sda", &mut fake);
        assert!(
            out.contains("\"vdevs\":{\"sda\":{\"name\":\"sda\""),
            "{out}"
        );
        let (status, _, err) = run("get health tank sda", &mut fake);
        assert_eq!(status, 2);
        assert!(err.starts_with("bad property list: invalid property 'health'\n"));
    }

    #[test]
    fn sets() {
        let mut fake = Fake::with(vec![sample("tank")]);
        assert_eq!(run("set io_n=5 tank sda", &mut fake).0, 0);
        assert_eq!(
            fake.seen,
            [Request::VdevSet(VdevSet {
                pool: "tank".into(),
                vdev: "sda".into(),
                property: "io_n".into(),
                value: "5".into(),
                command: "zpool set io_n=5 tank sda".into(),
            })]
        );
        let (status, _, err) = run("set nope=1 tank sda", &mut fake);
        assert_eq!(status, 1);
        let words = "cannot set property nope for sda on tank: invalid property 'nope'\n";
        assert_eq!(err, words);
    }
}
