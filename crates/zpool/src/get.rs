//! `zpool get` and `zpool set`.

use crate::{common, vdev_props};
use api::{PoolGet, Request, Select};
use cli::json::{envelope, property, Object, Put};
use cli::{Cx, Fail, Outcome, Parsed};

pub fn get(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let json = common::json_style(args)?;
    let exact = args.has("p") || json.is_some_and(|j| j.exact);
    let fields = cli::get::fields(args.get("o"), false)?;
    let Some((list, pools)) = args.operands.split_first() else {
        return Err(Fail::Usage("missing property argument".into()));
    };
    if let Some((pool, vdevs)) = vdev_props::asked(pools, cx)? {
        let form = vdev_props::Form {
            fields,
            exact,
            json,
        };
        return vdev_props::get(args, list, (&pool, &vdevs), &form, cx);
    }
    let props = if list == "all" {
        Select::All
    } else {
        let mut names = Vec::new();
        for word in list.split(',') {
            if word == "all" {
                return Err(Fail::Usage("bad property list: 'all' stands alone".into()));
            }
            names.push(common::pool_property(word).ok_or_else(|| {
                Fail::Usage(format!("bad property list: invalid property '{word}'"))
            })?);
        }
        Select::These(names)
    };
    let (found, failed) = common::pools(
        cx,
        PoolGet {
            pools: pools.to_vec(),
            props: props.clone(),
            ..PoolGet::default()
        },
    )?;
    let status = i32::from(failed);
    if let Some(style) = json {
        let mut report = envelope("zpool get");
        let mut all = Object::new();
        for pool in &found {
            let mut o = common::json_pool(pool, style, true);
            let mut out = Object::new();
            for p in &pool.props {
                let text = cli::value::pool(&p.name, &p.value, exact, &cx.zone);
                out.put(p.name.as_str(), property(style.text(text), &p.source));
            }
            o.put("properties", out);
            all.put(common::json_key(pool, args), o);
        }
        report.put("pools", all);
        common::print_json(cx, report)?;
        return Ok(status);
    }
    if found.is_empty() && !failed {
        if !args.has("H") {
            cx.say("no pools available")?;
        }
        return Ok(0);
    }
    let mut rows = Vec::new();
    for pool in &found {
        for p in &pool.props {
            if p.name == "name" {
                continue;
            }
            rows.push(cli::get::Row {
                name: pool.name.clone(),
                property: p.name.clone(),
                value: cli::value::pool(&p.name, &p.value, exact, &cx.zone),
                received: "-".into(),
                source: cli::value::source(&p.source),
            });
        }
    }
    if rows.is_empty() {
        return Ok(status);
    }
    let asked: Vec<&cli::props::Info> = match &props {
        Select::These(names) => names.iter().filter_map(|n| cli::props::pool(n)).collect(),
        _ => cli::props::POOL.iter().filter(|p| p.visible).collect(),
    };
    write!(
        cx.out,
        "{}",
        cli::get::render(&rows, &fields, &asked, args.has("H"))
    )?;
    Ok(status)
}

pub fn set(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (text, rest) = match args.operands.split_first() {
        None => return Err(Fail::Usage("missing property=value argument".into())),
        Some((_, [])) => return Err(Fail::Usage("missing pool name".into())),
        Some((text, rest)) => (text.clone(), rest),
    };
    if rest.len() > 2 {
        return Err(Fail::Usage("too many pool names".into()));
    }
    let (name, value) = cli::names::assignment(&text)
        .ok_or_else(|| Fail::Usage("missing value in property=value argument".into()))?;
    if let [pool, vdev] = rest {
        return vdev_props::set(pool, vdev, (name, value), cx);
    }
    let pool = rest[0].clone();
    let known = common::pool_property(&name).ok_or_else(|| {
        Fail::Error(format!(
            "cannot set property for '{pool}': invalid property '{name}'"
        ))
    })?;
    let request = Request::PoolSet {
        pool: pool.clone(),
        props: vec![(known, value)],
        command: cx.command(),
    };
    common::done(cx, &request, "set property for", &pool)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, sample, Fake};
    use api::Request;

    #[test]
    fn gets() {
        let mut fake = Fake::with(vec![sample("tank")]);
        let (status, out, _) = run(
            "get size,health,feature@async_destroy,altroot tank",
            &mut fake,
        );
        assert_eq!(status, 0);
        assert_eq!(
            out,
            "NAME  PROPERTY               VALUE                  SOURCE\n\
             tank  size                   960M                   -\n\
             tank  health                 ONLINE                 -\n\
             tank  feature@async_destroy  enabled                local\n\
             tank  altroot                -                      default\n"
        );
        let (_, out, _) = run("get -Hp -o value size tank", &mut fake);
        assert_eq!(out, "1006632960\n");
        let (_, out, _) = run("get -j version tank", &mut fake);
        assert!(out.ends_with(
            "\"properties\":{\"version\":{\"value\":\"-\",\"source\":{\"type\":\"DEFAULT\",\"data\":\"-\"}}}}}}\n"
        ));
        let (status, _, err) = run("get nope tank", &mut fake);
        assert_eq!(status, 2);
        assert!(err.starts_with("bad property list: invalid property 'nope'\n"));
        let (status, _, err) = run("get -o nope size", &mut fake);
        assert_eq!(status, 2);
        assert!(err.starts_with("invalid column name 'nope'\n"), "{err}");
    }

    #[test]
    fn sets() {
        let mut fake = Fake::with(vec![sample("tank")]);
        assert_eq!(run("set comment=hi tank", &mut fake).0, 0);
        assert_eq!(run("listsnaps=on tank", &mut fake).0, 0);
        assert_eq!(
            fake.seen,
            [
                Request::PoolSet {
                    pool: "tank".into(),
                    props: vec![("comment".into(), "hi".into())],
                    command: "zpool set comment=hi tank".into()
                },
                Request::PoolSet {
                    pool: "tank".into(),
                    props: vec![("listsnapshots".into(), "on".into())],
                    command: "zpool listsnaps=on tank".into()
                }
            ]
        );
        for line in ["set", "set a=b", "set comment tank", "set a=b c d e"] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
        assert_eq!(run("set nope=1 tank", &mut fake).0, 1);
    }
}
