//! Detects cross-site requests (CSRF): those that a page of another site makes a browser send.

use http::{HeaderMap, HeaderName, HeaderValue, header};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The header by which a browser names the page of another site that sends a request. Other clients send neither header.
///
/// Pages of `own_host` may send requests; `None` is a port without pages.
pub fn cross_site_header<'h>(
    headers: &'h HeaderMap,
    own_host: Option<&str>,
) -> Option<(HeaderName, &'h HeaderValue)> {
    let is_own_fetch = |site: &HeaderValue| site == "same-origin" || site == "none";
    let is_own_origin = |origin: &HeaderValue| {
        let origin = origin.to_str().unwrap_or_default();
        let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        host.is_some() && host == own_host
    };
    let fetch = headers.get_all(SEC_FETCH_SITE).iter().find(|site| !is_own_fetch(site));
    let origin = || headers.get_all(header::ORIGIN).iter().find(|origin| !is_own_origin(origin));
    fetch.map(|site| (SEC_FETCH_SITE, site)).or_else(|| Some((header::ORIGIN, origin()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_another_site_is_known_by_its_headers() {
        for (name, value, is_cross_site) in [
            ("origin", "http://evil.test", true),
            ("origin", "null", true),
            ("origin", "", true),
            ("sec-fetch-site", "cross-site", true),
            ("sec-fetch-site", "same-site", true),
            ("sec-fetch-site", "Cross-Site", true),
            ("sec-fetch-site", "same-origin", false),
            ("sec-fetch-site", "none", false),
            ("accept", "*/*", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(cross_site_header(&headers, None).is_some(), is_cross_site, "{name}: {value}");
        }
    }
}
