//! The page: files that are part of the program. They contain no data, so that they need no token.
//!
//! The page loads nothing from other sites, and its policy allows only its own scripts and addresses.

use http::{HeaderValue, Method, StatusCode, header};

use server::http::{Answer, typed};

/// The files by their paths, each with its content type.
const FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    // The page for a key, whose address has the key: `/key?domain=…&descriptor=…`.
    ("/key", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", JAVASCRIPT, include_str!("page/page.js")),
    ("/act.js", JAVASCRIPT, include_str!("page/act.js")),
    ("/api.js", JAVASCRIPT, include_str!("page/api.js")),
    ("/format.js", JAVASCRIPT, include_str!("page/format.js")),
    ("/key.js", JAVASCRIPT, include_str!("page/key.js")),
    ("/plot.js", JAVASCRIPT, include_str!("page/plot.js")),
    ("/search.js", JAVASCRIPT, include_str!("page/search.js")),
    ("/switch.js", JAVASCRIPT, include_str!("page/switch.js")),
    ("/try.js", JAVASCRIPT, include_str!("page/try.js")),
    ("/why.js", JAVASCRIPT, include_str!("page/why.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

const SCHEMA: &str = "/schema.json";

const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

pub(super) fn has(path: &str) -> bool {
    path == SCHEMA || FILES.iter().any(|(known, _, _)| *known == path)
}

pub(super) fn get(method: &Method, path: &str) -> Option<Answer> {
    if method != Method::GET && method != Method::HEAD {
        return None;
    }
    if path == SCHEMA {
        let text = format!("{:#}\n", rules::schema());
        return Some(typed(StatusCode::OK, "application/schema+json", text));
    }
    let (_, content_type, text) = FILES.iter().find(|(known, _, _)| *known == path)?;
    let mut answer = typed(StatusCode::OK, content_type, *text);
    answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, POLICY);
    Some(answer)
}
