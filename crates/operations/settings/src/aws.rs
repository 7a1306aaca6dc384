//! The AWS identity that logs in to ElastiCache or MemoryDB: the cache, and the first step of AWS' credential chain that the
//! environment configures.

#[cfg(test)]
mod tests;

use http::Uri;

use super::{
    reader::Reader,
    variable::Var,
    vars::{self, AwsVars, RedisVars},
};
use aws_iam::settings::{AccessKey, Authorization, CredentialStep, Iam, Service};
use net::Secret;

/// The agents of ECS and of EKS, which listen without TLS on addresses that only this machine reaches.
const AGENTS: [&str; 5] = ["localhost", "127.0.0.1", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"];

/// The login of a Redis; `None` if it is off or rejected. `has_login` is true if its URL has a login.
pub(super) fn read(reader: &mut Reader<'_>, set: &RedisVars, tls: bool, has_login: bool) -> Option<Iam> {
    let RedisVars { iam_cache, iam_user, .. } = set;
    let rows: [&'static Var; 5] = [
        &vars::REDIS_AWS_IAM_CACHE_NAME,
        &vars::REDIS_AWS_IAM_USER_ID,
        &vars::REDIS_AWS_IAM_REGION,
        &vars::REDIS_AWS_IAM_SERVICE,
        &vars::REDIS_AWS_IAM_SERVERLESS,
    ];
    let name = reader.effective(&vars::REDIS_AWS_IAM_AUTH).name;
    if !set.iam {
        reader.warn_unused(&rows, &format!("without {name}=true"));
        return None;
    }
    for (var, value) in [(rows[0], iam_cache), (rows[1], iam_user)] {
        if value.is_empty() {
            let expected = format!("a value of {} too", reader.effective(var).name);
            reader.conflict(&vars::REDIS_AWS_IAM_AUTH, &expected, "it is part of the signature");
        }
    }
    for var in [&*vars::REDIS_AUTH, &*vars::REDIS_AUTH_FILE] {
        if reader.is_set(var) {
            reader.conflict(var, &format!("no value beside {name}"), "unset one of them");
        }
    }
    if has_login {
        reader.conflict(
            &vars::REDIS_URL,
            &format!("a URL without a login beside {name}"),
            "remove the login",
        );
    }
    if !tls {
        reader.conflict(
            &vars::REDIS_TLS,
            "true",
            format!("AWS accepts the password of {name} over TLS only"),
        );
    }
    if set.iam_service == Service::MemoryDb && set.iam_serverless {
        reader.conflict(&vars::REDIS_AWS_IAM_SERVERLESS, "false", "MemoryDB has no serverless caches");
    }
    let aws = AwsVars::read(reader);
    let region = region(reader, set, &aws);
    Some(Iam {
        user: iam_user.clone(),
        // AWS stores the name in lower case.
        cache: iam_cache.to_ascii_lowercase(),
        service: set.iam_service,
        serverless: set.iam_serverless,
        credentials: step(reader, aws, &region)?,
        region,
    })
}

fn region(reader: &mut Reader<'_>, set: &RedisVars, aws: &AwsVars) -> String {
    let found = [
        (&*vars::REDIS_AWS_IAM_REGION, &set.iam_region),
        (&*vars::AWS_REGION, &aws.region),
        (&*vars::AWS_DEFAULT_REGION, &aws.default_region),
    ];
    let found = found.into_iter().find(|(_, value)| !value.is_empty());
    let (var, value) = found.unwrap_or((&vars::REDIS_AWS_IAM_REGION, &set.iam_region));
    if !is_region(value) {
        reader.conflict(var, "a region such as eu-central-1", "it is part of the signature");
    }
    value.clone()
}

/// Words of small letters that end with a number: `us-gov-west-1`.
fn is_region(text: &str) -> bool {
    let words: Vec<_> = text.split('-').collect();
    let is_word = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
    let is_number = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    words
        .split_last()
        .is_some_and(|(last, words)| words.len() >= 2 && words.iter().all(is_word) && is_number(last))
}

fn step(reader: &mut Reader<'_>, aws: AwsVars, region: &str) -> Option<CredentialStep> {
    if !aws.access_key.is_empty() || !aws.secret_key.is_empty() {
        for (var, value) in
            [(&*vars::AWS_ACCESS_KEY_ID, &aws.access_key), (&*vars::AWS_SECRET_ACCESS_KEY, &aws.secret_key)]
        {
            if value.is_empty() {
                reader.conflict(
                    var,
                    "a value",
                    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY need each other",
                );
            }
        }
        let session = (!aws.session_token.is_empty()).then_some(Secret(aws.session_token));
        let key = AccessKey { id: aws.access_key, secret: Secret(aws.secret_key), session };
        return Some(CredentialStep::Variables(key));
    }
    if let Some(token) = aws.web_identity {
        if aws.role.is_empty() {
            reader.conflict(&vars::AWS_ROLE_ARN, "the ARN of a role", "AWS_WEB_IDENTITY_TOKEN_FILE needs it");
        }
        let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
        let sts = aws.sts.or_else(|| format!("https://sts.{region}.amazonaws.com{suffix}/").parse().ok())?;
        return Some(CredentialStep::WebIdentity { token, role: aws.role, session: aws.role_session, sts });
    }
    if let Some(uri) = container(reader, aws.container, &aws.container_path) {
        let value = (!aws.container_token.is_empty()).then_some(Secret(aws.container_token));
        let file = aws.container_token_file.map(Authorization::File);
        return Some(CredentialStep::Container {
            uri,
            authorization: file.or(value.map(Authorization::Value)),
        });
    }
    if aws.no_metadata {
        let hint = "no other variable of AWS names credentials: AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE or \
            AWS_CONTAINER_CREDENTIALS_FULL_URI";
        reader.conflict(&vars::AWS_EC2_METADATA_DISABLED, "false", hint);
    }
    Some(CredentialStep::Instance { endpoint: aws.metadata? })
}

/// The URL of a container's agent, which is sent a token.
fn container(reader: &mut Reader<'_>, full: Option<Uri>, path: &str) -> Option<Uri> {
    if !path.is_empty() {
        let uri = format!("http://169.254.170.2{path}").parse().ok().filter(|_| path.starts_with('/'));
        if uri.is_none() {
            reader.conflict(&vars::AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, "a path", "it begins with /");
        }
        return uri;
    }
    let uri = full?;
    if uri.scheme_str() != Some("https") && !AGENTS.contains(&uri.host().unwrap_or_default()) {
        let expected = format!("https://, or http:// to one of {}", AGENTS.join(", "));
        let hint = "a token would be sent in plain text";
        reader.conflict(&vars::AWS_CONTAINER_CREDENTIALS_FULL_URI, &expected, hint);
    }
    Some(uri)
}
