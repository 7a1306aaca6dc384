//! The deployments' own environments, taken literally: the image's root, read-only, as its user, with the rules
//! where they are mounted, the names and ports as they stand, and a Redis, all in a network of their own.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{documents, image, kustomized, object, output, read, root};

/// What is to be started, as a deployment says.
struct Pod {
    command: Vec<String>,
    env: Vec<String>,
    /// The rules files, and where they are mounted.
    rules: Vec<(String, String)>,
    mounted_at: String,
    /// Ports and paths that are asked whether it is well.
    probes: Vec<String>,
    /// Domain and descriptor of a request, as `tollgate request` takes them.
    request: [&'static str; 2],
}

#[test]
fn istios_sample_runs_with_the_image_changed() {
    let objects = kustomized("deploy/istio");
    let seen = run(&Pod::of(&objects, ["ratelimit", "PATH=/productpage"]));
    assert!(seen.contains("ratelimit_PATH_/productpage_"), "{seen}");
}

#[test]
fn the_deployment_for_kubernetes_runs() {
    let objects = kustomized("deploy/kubernetes");
    let seen = run(&Pod::of(&objects, ["shop", "client_id=alice"]));
    assert!(seen.contains("shop_client_id_alice_"), "{seen}");
}

#[test]
fn the_service_of_compose_runs() {
    let service = &documents(&read("deploy/compose.yaml"))[0]["services"]["tollgate"];
    let env = service["environment"].as_object().unwrap().iter();
    let volume = service["volumes"][0].as_str().unwrap();
    let [source, mounted_at, "ro"] = volume.split(':').collect::<Vec<_>>()[..] else { panic!("{volume}") };
    let seen = run(&Pod {
        // As the example of the Go service has it, though the image starts with the same anyway.
        command: [image::entry_point(), vec!["/bin/ratelimit".to_owned()]].concat(),
        env: env.map(|(name, value)| format!("{name}={}", value.as_str().unwrap())).collect(),
        rules: directory(&root().join("deploy").join(source)),
        mounted_at: mounted_at.to_owned(),
        probes: vec!["8080/healthcheck".to_owned()],
        request: ["shop", "client_id=alice"],
    });
    assert!(seen.contains("shop_client_id_alice_"), "{seen}");
}

impl Pod {
    /// The pod of the one Deployment among these.
    fn of(objects: &[Value], request: [&'static str; 2]) -> Self {
        let pod = &object(objects, "Deployment")["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let rules = object(objects, "ConfigMap")["data"].as_object().unwrap().iter();
        let command =
            list(&container["command"]).iter().map(|word| word.as_str().unwrap().to_owned()).collect();
        Self {
            command: if container["command"].is_null() { image::entry_point() } else { command },
            env: list(&container["env"]).iter().filter_map(variable).collect(),
            rules: rules.map(|(name, text)| (name.clone(), text.as_str().unwrap().to_owned())).collect(),
            mounted_at: container["volumeMounts"][0]["mountPath"].as_str().unwrap().to_owned(),
            probes: probes(container),
            request,
        }
    }
}

/// A variable with its value; one from a Secret that may be missing is missing.
fn variable(variable: &Value) -> Option<String> {
    if let Some(value) = variable["value"].as_str() {
        return Some(format!("{}={value}", variable["name"].as_str()?));
    }
    assert_eq!(variable["valueFrom"]["secretKeyRef"]["optional"], true, "{variable}");
    None
}

/// `port/path` of each probe; where there is none, that of the Go service's.
fn probes(container: &Value) -> Vec<String> {
    let number = |name: &Value| {
        let ports = container["ports"].as_array().unwrap();
        ports.iter().find(|port| &port["name"] == name).unwrap()["containerPort"].to_string()
    };
    let probe = |name: &&str| {
        let get = &container[*name]["httpGet"];
        Some(format!("{}{}", number(get.get("port")?), get["path"].as_str()?))
    };
    let found: Vec<_> =
        ["startupProbe", "readinessProbe", "livenessProbe"].iter().filter_map(probe).collect();
    if found.is_empty() { vec!["8080/healthcheck".to_owned()] } else { found }
}

/// Starts the pod, asks it until it refuses, ends it, and gives what was seen: the keys in Redis among it.
fn run(pod: &Pod) -> String {
    let image = image::image();
    let root = image.path().join("root");
    mount(&pod.rules, &root.join(pod.mounted_at.trim_start_matches('/')));
    fs::create_dir_all(root.join("proc")).unwrap();
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost redis\n").unwrap();
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/deploy/pod.sh");
    let mut command = Command::new(script);
    command
        .arg(&root)
        .arg(image::user())
        .arg(pod.probes.join(" "))
        .args(pod.request)
        .arg(pod.command.join(" "));
    output(command.args(&pod.env))
}

/// Lays files down as a ConfigMap is mounted: behind two symlinks.
fn mount(files: &[(String, String)], directory: &Path) {
    let data = directory.join("..2026_01_02_03_04_05.678");
    fs::create_dir_all(&data).unwrap();
    symlink(data.file_name().unwrap(), directory.join("..data")).unwrap();
    for (name, text) in files {
        fs::write(data.join(name), text).unwrap();
        symlink(Path::new("..data").join(name), directory.join(name)).unwrap();
    }
}

/// The files of a directory, with what is in them.
fn directory(path: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
        .collect()
}
