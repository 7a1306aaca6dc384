//! The deployments, run literally: the root of the image, read-only, with its user, mounted rules and certificates, the
//! same names and ports, and a Redis, in a network namespace. `gateway` has the deployment of Envoy Gateway.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use super::{ISTIO, documents, image, kustomized, object, output, read, root};

/// A pod of a deployment.
pub(super) struct Pod {
    command: Vec<String>,
    env: Vec<String>,
    volumes: Vec<Volume>,
    /// `get PORT/PATH` or `exec COMMAND` of each probe.
    probes: Vec<String>,
    /// The actions of `pod.sh` while it runs.
    asks: String,
}

/// Files that are mounted.
struct Volume {
    at: String,
    /// By their names.
    files: Vec<(String, String)>,
}

#[test]
fn istios_sample_runs_with_the_image_changed() {
    let objects = documents(&read(ISTIO));
    let seen = run(&Pod::of(&objects, "ask_until_refused ratelimit PATH=/productpage"));
    assert!(seen.contains("ratelimit_PATH_/productpage_"), "{seen}");
}

#[test]
fn the_deployment_for_kubernetes_runs() {
    let mut objects = kustomized("deploy/kubernetes");
    objects.push(config_map("tollgate-rules", "deploy/kubernetes/rules"));
    let seen = run(&Pod::of(&objects, "ask_until_refused shop client_id=alice"));
    assert!(seen.contains("shop_client_id_alice_"), "{seen}");
}

#[test]
fn the_service_of_compose_runs() {
    let composed = &documents(&read("deploy/compose.yaml"))[0];
    let service = &composed["services"]["tollgate"];
    let env = service["environment"].as_object().unwrap().iter();
    let volume = service["volumes"][0].as_str().unwrap();
    let [source, mounted_at, "ro"] = volume.split(':').collect::<Vec<_>>()[..] else { panic!("{volume}") };
    let tokens = service["environment"]["ADMIN_TOKEN_FILE"].as_str().unwrap();
    let (tokens_at, file) = tokens.rsplit_once('/').unwrap();
    let token = composed["configs"]["tokens"]["file"].as_str().unwrap();
    let token = fs::read_to_string(root().join("deploy").join(token)).unwrap();
    let seen = run(&Pod {
        // As in the example of the Go service, and the default of the image.
        command: [image::entry_point(), vec!["/bin/ratelimit".to_owned()]].concat(),
        env: env.map(|(name, value)| format!("{name}={}", value.as_str().unwrap())).collect(),
        volumes: vec![
            Volume { at: mounted_at.to_owned(), files: directory(&root().join("deploy").join(source)) },
            Volume { at: tokens_at.to_owned(), files: vec![(file.to_owned(), token)] },
        ],
        probes: vec!["get 8080/healthcheck".to_owned()],
        // As `docker compose exec`.
        asks: format!(
            "ask_until_refused shop client_id=alice; ADMIN_ADDR=:6071 ADMIN_TOKEN_FILE={tokens} \"$chroot\" \"$root.mounted\" \
             /bin/tollgate status"
        ),
    });
    assert!(seen.contains("shop_client_id_alice_"), "{seen}");
}

/// What `kubectl create configmap NAME --from-file=DIRECTORY` creates.
pub(super) fn config_map(name: &str, path: &str) -> Value {
    let data: serde_json::Map<_, _> =
        directory(&root().join(path)).into_iter().map(|(name, text)| (name, text.into())).collect();
    json!({"kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

impl Pod {
    /// The pod of the one Deployment among these.
    pub(super) fn of(objects: &[Value], asks: &str) -> Self {
        let pod = &object(objects, "Deployment")["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let command =
            list(&container["command"]).iter().map(|word| word.as_str().unwrap().to_owned()).collect();
        let volumes = list(&pod["volumes"]);
        let mounted = |mount: &Value| Volume {
            at: mount["mountPath"].as_str().unwrap().to_owned(),
            files: files(objects, volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap()),
        };
        Self {
            command: if container["command"].is_null() { image::entry_point() } else { command },
            env: list(&container["env"]).iter().map(variable).collect(),
            volumes: list(&container["volumeMounts"]).iter().map(mounted).collect(),
            probes: probes(container),
            asks: asks.to_owned(),
        }
    }
}

/// The files of a volume; none if its object is optional and missing.
fn files(objects: &[Value], volume: &Value) -> Vec<(String, String)> {
    let (kind, name, field) = match volume.get("secret") {
        Some(secret) => ("Secret", &secret["secretName"], "stringData"),
        None => ("ConfigMap", &volume["configMap"]["name"], "data"),
    };
    let named = objects.iter().find(|object| object["kind"] == kind && &object["metadata"]["name"] == name);
    assert!(named.is_some() || volume["configMap"]["optional"] == true, "no {kind} {name}");
    let data = named.and_then(|object| object[field].as_object()).into_iter().flatten();
    data.map(|(name, text)| (name.clone(), text.as_str().unwrap().to_owned())).collect()
}

/// A variable with its value.
fn variable(variable: &Value) -> String {
    let value = variable["value"].as_str().unwrap_or_else(|| panic!("no value: {variable}"));
    format!("{}={value}", variable["name"].as_str().unwrap())
}

/// The probes of a container, by default that of the Go service.
fn probes(container: &Value) -> Vec<String> {
    let number = |port: &Value| {
        let named = container["ports"].as_array().unwrap().iter().find(|own| &own["name"] == port);
        named.map_or(port, |own| &own["containerPort"]).to_string()
    };
    let probe = |name: &&str| {
        let probe = &container[*name];
        if let Some(words) = probe["exec"]["command"].as_array() {
            let words: Vec<_> = words.iter().map(|word| word.as_str().unwrap()).collect();
            return Some(format!("exec {}", words.join(" ")));
        }
        let get = &probe["httpGet"];
        Some(format!("get {}{}", number(get.get("port")?), get["path"].as_str()?))
    };
    let found: Vec<_> =
        ["startupProbe", "readinessProbe", "livenessProbe"].iter().filter_map(probe).collect();
    if found.is_empty() { vec!["get 8080/healthcheck".to_owned()] } else { found }
}

/// The host names that a pod uses, all on its own address.
const HOSTS: &str = "127.0.0.1 localhost redis redis.redis-system.svc.cluster.local envoy-gateway \
                     ai-gateway-controller.envoy-ai-gateway-system.svc.cluster.local\n";

/// Runs the pod with its actions, and returns the output, which includes the keys in Redis.
pub(super) fn run(pod: &Pod) -> String {
    let image = image::image();
    let root = image.path().join("root");
    for volume in &pod.volumes {
        mount(&volume.files, &root.join(volume.at.trim_start_matches('/')));
    }
    fs::create_dir_all(root.join("proc")).unwrap();
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::write(root.join("etc/hosts"), HOSTS).unwrap();
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/deploy/pod.sh");
    let mut command = Command::new(script);
    command
        .arg(&root)
        .arg(image::user())
        .arg(pod.probes.join("\n"))
        .arg(&pod.asks)
        .arg(pod.command.join(" "));
    output(command.args(&pod.env))
}

/// Writes files as in a mounted ConfigMap or Secret: behind two symlinks.
fn mount(files: &[(String, String)], directory: &Path) {
    let data = directory.join("..2026_01_02_03_04_05.678");
    fs::create_dir_all(&data).unwrap();
    symlink(data.file_name().unwrap(), directory.join("..data")).unwrap();
    for (name, text) in files {
        fs::write(data.join(name), text).unwrap();
        symlink(Path::new("..data").join(name), directory.join(name)).unwrap();
    }
}

/// The files of a directory with their content.
fn directory(path: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
        .collect()
}
