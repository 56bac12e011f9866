//! What jinja2 reads otherwise than minijinja, rewritten in the template's source.

/// The source with `\n` for every line end, without `{% generation %}` tags, and with Python's
/// escapes in its string literals written so that minijinja reads them alike.
///
/// `{% generation %}`, by which transformers marks the assistant's tokens for training, changes
/// nothing in the text: it becomes a block with a scope of its own.
pub(super) fn rewrite(source: &str) -> String {
    // jinja2 splits its source at all three.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = match tag.get(..2) {
            Some("{#") => tag.find("#}").map(|i| i + 2),
            Some("{%" | "{{") => end_of_tag(tag),
            _ => Some(1),
        };
        let Some(end) = end else {
            // Not closed: the engine says so.
            return out + tag;
        };
        let (tag, after) = tag.split_at(end);
        rest = after;
        match tag.strip_prefix("{%").map(name_of) {
            Some("generation") => out.push_str(&tag.replacen("generation", "with", 1)),
            Some("endgeneration") => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            Some("raw") => {
                let end = end_of_raw(rest);
                out.push_str(tag);
                out.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            Some(_) => out.push_str(&escapes(tag)),
            None if tag.starts_with("{{") => out.push_str(&escapes(tag)),
            None => out.push_str(tag),
        }
    }
    out + rest
}

/// The first word of a tag's inside.
fn name_of(inside: &str) -> &str {
    let inside = inside.trim_start_matches(['-', '+']).trim_start();
    let end = inside.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inside.len());
    &inside[..end]
}

/// Where a tag ends: at its closing braces outside of string literals and of brackets.
fn end_of_tag(tag: &str) -> Option<usize> {
    let close = if tag.starts_with("{%") { "%}" } else { "}}" };
    let mut quote = None;
    let mut depth = 0usize;
    let mut chars = tag.char_indices().skip(2);
    while let Some((i, c)) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => {
                chars.next();
            }
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, _) if depth == 0 && tag[i..].starts_with(close) => return Some(i + 2),
            (None, '{' | '(' | '[') => depth += 1,
            (None, '}' | ')' | ']') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
    }
    None
}

/// Where the `{% endraw %}` tag after a `{% raw %}` begins.
fn end_of_raw(rest: &str) -> usize {
    let is_end = |i: &usize| name_of(&rest[i + 2..]) == "endraw";
    rest.match_indices("{%").map(|(i, _)| i).find(is_end).unwrap_or(rest.len())
}

/// A tag whose escapes are those that both engines know. Outside of string literals a tag has no
/// backslash.
fn escapes(tag: &str) -> String {
    let mut out = String::with_capacity(tag.len());
    let mut rest = tag;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(c) = rest.chars().next() else { break };
        let code = |digits: usize| {
            let hex =
                rest.get(1..1 + digits).filter(|h| h.chars().all(|c| c.is_ascii_hexdigit()))?;
            char::from_u32(u32::from_str_radix(hex, 16).ok()?)
        };
        let octal = rest.find(|c: char| !('0'..='7').contains(&c)).unwrap_or(rest.len()).min(3);
        let (new, used) = match c {
            '\\' | '\'' | '"' | 'n' | 't' | 'r' => (format!("\\{c}"), 1),
            'u' => (format!("\\{c}"), 1),
            'x' => (code(2).map_or("\\x".into(), literal), 3),
            'U' => (code(8).map_or("\\U".into(), literal), 9),
            'a' => ("\u{7}".into(), 1),
            'b' => ("\u{8}".into(), 1),
            'f' => ("\u{c}".into(), 1),
            'v' => ("\u{b}".into(), 1),
            '\n' => (String::new(), 1),
            '0'..='7' => {
                let n = u32::from_str_radix(&rest[..octal], 8).unwrap_or(0);
                (char::from_u32(n).map_or_else(String::new, literal), octal)
            }
            // Python keeps the backslash.
            c => (format!("\\\\{c}"), c.len_utf8()),
        };
        out.push_str(&new);
        rest = rest.get(used..).unwrap_or_default();
    }
    out + rest
}

/// A character inside a string literal of either quotes.
fn literal(c: char) -> String {
    match c {
        '\\' | '\'' | '"' => format!("\\{c}"),
        '\n' => "\\n".into(),
        c => c.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn only_tags_are_rewritten() {
        let cases = [
            ("a\r\nb\rc", "a\nb\nc"),
            ("{% generation -%}x{%- endgeneration %}", "{% with -%}x{%- endwith %}"),
            ("{# {% generation %} \\d #}", "{# {% generation %} \\d #}"),
            (
                "{% raw %}{% generation %}\\d{% endraw %}{{ '\\d' }}",
                "{% raw %}{% generation %}\\d{% endraw %}{{ '\\\\d' }}",
            ),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            ("{{ '\\x27\\U0001F600\\101\\n\\\\d' }}", "{{ '\\'\u{1f600}A\\n\\\\d' }}"),
            ("{{ {'a': {'}}': 1}} }}\\d", "{{ {'a': {'}}': 1}} }}\\d"),
            ("{{ unclosed '\\d", "{{ unclosed '\\d"),
            ("{", "{"),
        ];
        for (given, expected) in cases {
            assert_eq!(rewrite(given), expected, "{given}");
        }
    }
}
