//! Changes single keys of a TOML file, and leaves all other lines as they are.

use toml::{Table, Value};

/// The file with these values: section, key, value. A key that is missing is added to its section,
/// which must be there.
///
/// # Errors
///
/// The file can't be changed line by line: a value takes several lines, or its section has another
/// form. The reason names the key.
pub fn edited(text: &str, changes: &[(&str, &str, Value)]) -> Result<String, String> {
    let mut want: Table = text.parse().map_err(|e| format!("is no TOML ({e}): correct it"))?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (section, key, value) in changes {
        let hint =
            format!("[{section}] {key}: write it as `{key} = …` on one line below [{section}]");
        let line = format!("{key} = {value}");
        match place(&lines, section, key).ok_or(&hint)? {
            (at, true) => lines[at] = line,
            (at, false) => lines.insert(at, line),
        }
        let table = want.get_mut(*section).and_then(Value::as_table_mut).ok_or(&hint)?;
        table.insert((*key).to_owned(), value.clone());
        // A line that looks like the key may be part of another value.
        let now = lines.join("\n").parse::<Table>();
        if now.ok().as_ref() != Some(&want) {
            return Err(hint);
        }
    }
    Ok(lines.join("\n") + "\n")
}

/// Number of the line that has the key, or before which it belongs; true if the line has it. None
/// without the section.
fn place(lines: &[String], section: &str, key: &str) -> Option<(usize, bool)> {
    let header = format!("[{section}]");
    let is_header = |line: &str| line.split('#').next().is_some_and(|line| line.trim() == header);
    let start = lines.iter().position(|line| is_header(line))? + 1;
    let is_key = |line: &String| {
        let rest = line.trim_start().strip_prefix(key).map(str::trim_start);
        rest.is_some_and(|rest| rest.starts_with('='))
    };
    let section = lines[start..].iter().take_while(|line| !line.trim_start().starts_with('['));
    let found = section.into_iter().position(is_key);
    Some(found.map_or((start, false), |at| (start + at, true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str, section: &str, key: &str, value: &str) -> Result<String, String> {
        edited(text, &[(section, key, Value::String(value.into()))])
    }

    #[test]
    fn one_line_changes_and_the_others_stay() {
        let text = "# by hand\n[node] # this machine\n  name = \"bob\" # was rob\nlisten = [\n  \
                    \"0.0.0.0:1\",\n]\n\n[anonymity]\npreset = \"hidden\"\n\n[[link]]\nname = 1\n";
        let want = text.replace("  name = \"bob\" # was rob", "name = \"eve\"");
        assert_eq!(set(text, "node", "name", "eve").unwrap(), want);
        let want = text.replace("this machine\n", "this machine\naddress = \"1.9\"\n");
        assert_eq!(set(text, "node", "address", "1.9").unwrap(), want);
        let several = [("node", "name", "a".into()), ("anonymity", "preset", "fast".into())];
        let said = edited(text, &several).unwrap();
        assert!(said.contains("name = \"a\"\n") && said.contains("preset = \"fast\"\n"), "{said}");
    }

    #[test]
    fn what_has_another_form_is_refused_by_name() {
        for text in [
            "node = { name = \"bob\" }\n",
            "node.name = \"bob\"\n",
            "[node]\n\"name\" = \"bob\"\n",
            "[node]\nname = \"\"\"\nbob\"\"\"\n",
            "[node]\nabout = \"\"\"\nname = \"x\"\n\"\"\"\nname = \"bob\"\n",
            "about = '''\n[node]\n'''\n[node]\nname = \"bob\"\n",
            "[other]\nname = \"bob\"\n",
        ] {
            let said = set(text, "node", "name", "eve").unwrap_err();
            let want = "[node] name: write it as `name = …` on one line below [node]";
            assert_eq!(said, want, "{text}");
        }
        assert!(set("[node", "node", "name", "eve").unwrap_err().starts_with("is no TOML"));
    }
}
