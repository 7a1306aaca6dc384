//! AWS Signature Version 4 of a request in a URL ("presigned"): <https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html>.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ring::{
    digest::{SHA256, digest},
    hmac,
};

use crate::settings::{AccessKey, Iam};
use clock::{Rfc3339, Time};
use net::Secret;
use text::hex;

/// All but the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// What a signature is valid for.
pub(crate) struct Scope<'a> {
    pub(crate) region: &'a str,
    pub(crate) service: &'a str,
    pub(crate) now: Time,
    pub(crate) valid: Duration,
}

/// The password of the user: the URL, without its scheme, of a request to connect to the cache.
pub(crate) fn password(iam: &Iam, key: &AccessKey, now: Time, valid: Duration) -> String {
    let mut query = vec![("Action", "connect"), ("User", &*iam.user)];
    if iam.serverless {
        query.push(("ResourceType", "ServerlessCache"));
    }
    presigned(
        key,
        &Scope { region: &iam.region, service: iam.service.name(), now, valid },
        &iam.cache,
        &query,
    )
}

/// `host/?query` of a `GET`, signed.
pub(crate) fn presigned(key: &AccessKey, scope: &Scope<'_>, host: &str, query: &[(&str, &str)]) -> String {
    let Scope { region, service, now, valid } = scope;
    let time: String = Rfc3339(*now).to_string().chars().filter(char::is_ascii_alphanumeric).collect();
    // Without the milliseconds.
    let (day, within) = time.split_at_checked(8).unwrap_or_default();
    let time = format!("{day}{}Z", within.get(..7).unwrap_or_default());
    let scope = format!("{day}/{region}/{service}/aws4_request");
    let credential = format!("{}/{scope}", key.id);
    let seconds = valid.as_secs().to_string();
    let mut query = query.to_vec();
    query.extend([
        ("X-Amz-Algorithm", ALGORITHM),
        ("X-Amz-Credential", &credential),
        ("X-Amz-Date", &time),
        ("X-Amz-Expires", &seconds),
        ("X-Amz-SignedHeaders", "host"),
    ]);
    query.extend(key.session.as_ref().map(|Secret(token)| ("X-Amz-Security-Token", &**token)));
    let mut query: Vec<_> = query.into_iter().map(|(name, value)| pair(name, value)).collect();
    query.sort_unstable();
    let query = query.join("&");
    let body = hex(digest(&SHA256, b"").as_ref().iter());
    let request = format!("GET\n/\n{query}\nhost:{host}\n\nhost\n{body}");
    let request = hex(digest(&SHA256, request.as_bytes()).as_ref().iter());
    let text = format!("{ALGORITHM}\n{time}\n{scope}\n{request}");
    let mut signing = format!("AWS4{}", key.secret.0).into_bytes();
    for part in [day, region, service, "aws4_request"] {
        signing = mac(&signing, part);
    }
    format!("{host}/?{query}&X-Amz-Signature={}", hex(mac(&signing, &text).iter()))
}

/// `name=value`, encoded.
pub(crate) fn pair(name: &str, value: &str) -> String {
    format!("{}={}", utf8_percent_encode(name, ENCODED), utf8_percent_encode(value, ENCODED))
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}
