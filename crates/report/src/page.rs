//! The HTML page: styles, scripts and data in one file.

use crate::data::Report;

const STYLE: &str = include_str!("../page/style.css");
const BODY: &str = include_str!("../page/body.html");
/// The layout library and our scripts, in dependency order.
const SCRIPTS: [&str; 7] = [
    include_str!("../page/dagre.min.js"),
    include_str!("../page/elements.js"),
    include_str!("../page/layout.js"),
    include_str!("../page/graph.js"),
    include_str!("../page/details.js"),
    include_str!("../page/sections.js"),
    include_str!("../page/main.js"),
];

/// Renders the page of a report.
pub(crate) fn render(report: &Report) -> String {
    let data = serde_json::to_string(report).expect("a report is numbers, texts and lists");
    let mut page = String::with_capacity(data.len() + (256 << 10));
    page += "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
    page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
    page += "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; ";
    page += "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n";
    page +=
        &format!("<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n", escaped(&report.title));
    page += &format!("<body>\n{BODY}\n");
    page += "<script type=\"application/json\" id=\"data\">";
    push_data(&mut page, &data);
    page += "</script>\n";
    for script in SCRIPTS {
        page += "<script>\n";
        page += script;
        page += "\n</script>\n";
    }
    page += "</body>\n</html>\n";
    page
}

/// Appends JSON inside a script element. Escapes `<`, since names may contain tags.
fn push_data(page: &mut String, data: &str) {
    for (at, part) in data.split('<').enumerate() {
        if at > 0 {
            page.push_str("\\u003c");
        }
        page.push_str(part);
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_script_tags_in_names() {
        let title = "</script><script>alert(1)</script>".to_owned();
        let report = Report { title, ..Report::default() };
        let page = render(&report);
        assert_eq!(
            page.matches("alert(1)").count(),
            2,
            "expected once in the title and once in the data"
        );
        assert!(!page.contains("<script>alert"));
        assert!(page.contains("\\u003c/script>\\u003cscript>alert(1)"));
    }

    #[test]
    fn page_without_data_is_under_200_kib() {
        assert!(render(&Report::default()).len() < 200 << 10);
    }
}
