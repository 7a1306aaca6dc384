//! What the operator sets: the cache, the user, and the source of AWS credentials.

use std::path::PathBuf;

use http::Uri;

use net::Secret;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Iam {
    /// The user of the cache, whose id and name must be equal.
    pub user: String,
    /// The name of the replication group, the serverless cache or the MemoryDB cluster, in lower case.
    pub cache: String,
    pub service: Service,
    pub serverless: bool,
    pub region: String,
    pub credentials: CredentialStep,
}

text::named! {
    #[derive(Default)]
    pub enum Service {
        #[default]
        ElastiCache = "elasticache",
        MemoryDb = "memorydb",
    }
}

/// An access key, with the token of a session if it is temporary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessKey {
    pub id: String,
    pub secret: Secret,
    pub session: Option<Secret>,
}

/// The first step of AWS's credential chain that the environment configures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CredentialStep {
    Variables(AccessKey),
    WebIdentity {
        token: PathBuf,
        role: String,
        session: String,
        /// The security token service.
        sts: Uri,
    },
    Container {
        uri: Uri,
        authorization: Option<Authorization>,
    },
    Instance {
        /// The instance metadata service.
        endpoint: Uri,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Authorization {
    Value(Secret),
    File(PathBuf),
}

impl CredentialStep {
    /// The variable that configures the step, for errors.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Variables(_) => "AWS_ACCESS_KEY_ID",
            Self::WebIdentity { .. } => "AWS_WEB_IDENTITY_TOKEN_FILE (STS)",
            Self::Container { .. } => "AWS_CONTAINER_CREDENTIALS_FULL_URI or …_RELATIVE_URI",
            Self::Instance { .. } => "the instance metadata service",
        }
    }

    pub(crate) fn needs_tls(&self) -> bool {
        let uri = match self {
            Self::Variables(_) => return false,
            Self::WebIdentity { sts: uri, .. }
            | Self::Container { uri, .. }
            | Self::Instance { endpoint: uri } => uri,
        };
        uri.scheme_str() == Some("https")
    }
}
