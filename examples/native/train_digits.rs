//! Trains a classifier of handwritten digits for an epoch and runs the exported model: train_digits ARTIFACTS CHECKPOINT OUT.
//! The tables of functions are declared here as far as the program calls them; `Slot` stands for the others.
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_float, c_int, c_void};
use std::{env, fs, ptr};

const VERSION: u32 = 19;
const PIXELS: usize = 64;
const BATCH: usize = 32;
const FLOAT: c_int = 1;
const INT64: c_int = 7;

type Slot = *const c_void;
type Handle = *mut c_void;
type Status = *mut c_void;

#[repr(C)]
struct ApiBase {
    get_api: extern "C" fn(u32) -> *const Api,
    get_version_string: extern "C" fn() -> *const c_char,
}

#[repr(C)]
struct Api {
    _0: [Slot; 2],
    get_error_message: extern "C" fn(Status) -> *const c_char,
    create_env: extern "C" fn(c_int, *const c_char, *mut Handle) -> Status,
    _4: [Slot; 3],
    create_session: extern "C" fn(Handle, *const c_char, Handle, *mut Handle) -> Status,
    _8: Slot,
    run: extern "C" fn(Handle, Handle, *const *const c_char, *const Handle, usize, *const *const c_char, usize, *mut Handle) -> Status,
    create_session_options: extern "C" fn(*mut Handle) -> Status,
    _11: [Slot; 38],
    create_tensor: extern "C" fn(Handle, *mut c_void, usize, *const i64, usize, c_int, *mut Handle) -> Status,
    _50: Slot,
    get_tensor_data: extern "C" fn(Handle, *mut *mut c_void) -> Status,
    _52: [Slot; 17],
    create_cpu_memory_info: extern "C" fn(c_int, c_int, *mut Handle) -> Status,
    _70: [Slot; 6],
    allocator_free: extern "C" fn(Handle, *mut c_void) -> Status,
    _77: Slot,
    get_allocator: extern "C" fn(*mut Handle) -> Status,
    _79: [Slot; 13],
    release_env: extern "C" fn(Handle),
    release_status: extern "C" fn(Status),
    release_memory_info: extern "C" fn(Handle),
    release_session: extern "C" fn(Handle),
    release_value: extern "C" fn(Handle),
    _97: [Slot; 3],
    release_session_options: extern "C" fn(Handle),
    _101: [Slot; 118],
    get_training_api: extern "C" fn(u32) -> *const TrainingApi,
}

type Step = extern "C" fn(Handle, Handle, usize, *const Handle, usize, *mut Handle) -> Status;

#[repr(C)]
struct TrainingApi {
    load_checkpoint: extern "C" fn(*const c_char, *mut Handle) -> Status,
    save_checkpoint: extern "C" fn(Handle, *const c_char, bool) -> Status,
    create_training_session: extern "C" fn(Handle, Handle, Handle, *const c_char, *const c_char, *const c_char, *mut Handle) -> Status,
    _3: [Slot; 5],
    lazy_reset_grad: extern "C" fn(Handle) -> Status,
    train_step: Step,
    eval_step: Step,
    _11: Slot,
    get_learning_rate: extern "C" fn(Handle, *mut c_float) -> Status,
    optimizer_step: extern "C" fn(Handle, Handle) -> Status,
    register_linear_lr_scheduler: extern "C" fn(Handle, i64, i64, c_float) -> Status,
    scheduler_step: extern "C" fn(Handle) -> Status,
    _16: [Slot; 3],
    release_training_session: extern "C" fn(Handle),
    release_checkpoint_state: extern "C" fn(Handle),
    export_model_for_inferencing: extern "C" fn(Handle, *const c_char, usize, *const *const c_char) -> Status,
    _22: [Slot; 5],
    add_property: extern "C" fn(Handle, *const c_char, c_int, *mut c_void) -> Status,
    get_property: extern "C" fn(Handle, *const c_char, Handle, *mut c_int, *mut *mut c_void) -> Status,
}

#[link(name = "onnxruntime")]
extern "C" {
    fn OrtGetApiBase() -> *const ApiBase;
}

struct Runtime {
    api: &'static Api,
    training: &'static TrainingApi,
}

/// An object of the library, which is released when it goes out of scope.
struct Owned {
    handle: Handle,
    release: extern "C" fn(Handle),
}

impl Drop for Owned {
    fn drop(&mut self) {
        (self.release)(self.handle);
    }
}

type Outcome<T> = Result<T, String>;

fn text(string: &str) -> CString {
    CString::new(string).expect("a text without zero bytes")
}

impl Runtime {
    fn new() -> Outcome<Runtime> {
        unsafe {
            let api = ((*OrtGetApiBase()).get_api)(VERSION).as_ref().ok_or("the library has not this version of the interface")?;
            let training = (api.get_training_api)(VERSION).as_ref().ok_or("the library cannot train")?;
            Ok(Runtime { api, training })
        }
    }

    fn check(&self, status: Status) -> Outcome<()> {
        if status.is_null() {
            return Ok(());
        }
        let message = unsafe { CStr::from_ptr((self.api.get_error_message)(status)) }.to_string_lossy().into_owned();
        (self.api.release_status)(status);
        Err(message)
    }

    /// Make an object by a function whose last parameter receives it.
    fn make(&self, release: extern "C" fn(Handle), create: impl FnOnce(*mut Handle) -> Status) -> Outcome<Owned> {
        let mut handle = ptr::null_mut();
        self.check(create(&mut handle))?;
        Ok(Owned { handle, release })
    }

    fn load_checkpoint(&self, path: &str) -> Outcome<Owned> {
        let path = text(path);
        self.make(self.training.release_checkpoint_state, |out| (self.training.load_checkpoint)(path.as_ptr(), out))
    }

    /// Make a tensor over memory of the program, which has to outlive it.
    fn tensor<T>(&self, memory: &Owned, data: &[T], shape: &[i64], kind: c_int) -> Outcome<Owned> {
        let (start, size) = (data.as_ptr() as *mut c_void, std::mem::size_of_val(data));
        self.make(self.api.release_value, |out| (self.api.create_tensor)(memory.handle, start, size, shape.as_ptr(), shape.len(), kind, out))
    }

    fn floats<'a>(&self, value: &'a Owned, count: usize) -> Outcome<&'a [f32]> {
        let mut data = ptr::null_mut();
        self.check((self.api.get_tensor_data)(value.handle, &mut data))?;
        Ok(unsafe { std::slice::from_raw_parts(data as *const f32, count) })
    }

    /// Run a train or eval step and return the loss.
    fn step(&self, step: Step, session: &Owned, memory: &Owned, images: &[f32], labels: &[i64]) -> Outcome<f32> {
        let rows = labels.len() as i64;
        let x = self.tensor(memory, images, &[rows, PIXELS as i64], FLOAT)?;
        let y = self.tensor(memory, labels, &[rows], INT64)?;
        let inputs = [x.handle, y.handle];
        let loss = self.make(self.api.release_value, |out| step(session.handle, ptr::null_mut(), 2, inputs.as_ptr(), 1, out))?;
        Ok(self.floats(&loss, 1)?[0])
    }

    /// Return the number of epochs that the checkpoint tells, 0 for a new one.
    fn epochs(&self, state: &Owned) -> Outcome<f32> {
        let (mut allocator, mut kind, mut found) = (ptr::null_mut(), 0, ptr::null_mut());
        self.check((self.api.get_allocator)(&mut allocator))?;
        if self.check((self.training.get_property)(state.handle, text("epochs").as_ptr(), allocator, &mut kind, &mut found)).is_err() {
            return Ok(0.0);
        }
        let epochs = unsafe { *(found as *const f32) };
        self.check((self.api.allocator_free)(allocator, found))?;
        Ok(epochs)
    }

    /// Return how many images the exported model recognizes.
    fn accuracy(&self, env: &Owned, options: &Owned, memory: &Owned, model: &str, images: &[f32], labels: &[i64]) -> Outcome<f64> {
        let path = text(model);
        let session = self.make(self.api.release_session, |out| (self.api.create_session)(env.handle, path.as_ptr(), options.handle, out))?;
        let x = self.tensor(memory, images, &[labels.len() as i64, PIXELS as i64], FLOAT)?;
        let (input, output) = (text("pixels"), text("logits"));
        let (inputs, outputs) = ([input.as_ptr()], [output.as_ptr()]);
        let logits = self.make(self.api.release_value, |out| {
            (self.api.run)(session.handle, ptr::null_mut(), inputs.as_ptr(), &x.handle, 1, outputs.as_ptr(), 1, out)
        })?;
        let scores = self.floats(&logits, labels.len() * 10)?;
        let best = |row: &[f32]| (0..10).fold(0, |best, digit| if row[digit] > row[best] { digit } else { best });
        let right = scores.chunks(10).zip(labels).filter(|(row, label)| best(row) as i64 == **label).count();
        Ok(right as f64 / labels.len() as f64)
    }
}

fn train(artifacts: &str, checkpoint: &str, out: &str) -> Outcome<()> {
    let read = |name: &str| fs::read(format!("{artifacts}/{name}")).map_err(|error| format!("{name}: {error}"));
    let images: Vec<f32> = read("images.bin")?.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    let labels: Vec<i64> = read("labels.bin")?.chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect();
    let ort = Runtime::new()?;
    let (api, training) = (ort.api, ort.training);
    let name = text("digits");
    let env = ort.make(api.release_env, |out| (api.create_env)(2, name.as_ptr(), out))?;
    let options = ort.make(api.release_session_options, |out| (api.create_session_options)(out))?;
    let memory = ort.make(api.release_memory_info, |out| (api.create_cpu_memory_info)(1, 0, out))?;
    let state = ort.load_checkpoint(checkpoint)?;
    let [train, eval, optimizer] = ["training", "eval", "optimizer"].map(|name| text(&format!("{artifacts}/{name}_model.onnx")));
    let session = ort.make(training.release_training_session, |out| {
        (training.create_training_session)(env.handle, options.handle, state.handle, train.as_ptr(), eval.as_ptr(), optimizer.as_ptr(), out)
    })?;
    ort.check((training.register_linear_lr_scheduler)(session.handle, 10, 100, 0.01))?;
    for (x, y) in images.chunks_exact(BATCH * PIXELS).zip(labels.chunks_exact(BATCH)) {
        ort.step(training.train_step, &session, &memory, x, y)?;
        ort.check((training.optimizer_step)(session.handle, ptr::null_mut()))?;
        ort.check((training.scheduler_step)(session.handle))?;
        ort.check((training.lazy_reset_grad)(session.handle))?;
    }
    let mut rate = 0.0;
    ort.check((training.get_learning_rate)(session.handle, &mut rate))?;
    println!("loss {}", ort.step(training.eval_step, &session, &memory, &images, &labels)?);
    println!("rate {rate}");
    let mut epochs = ort.epochs(&state)? + 1.0;
    ort.check((training.add_property)(state.handle, text("epochs").as_ptr(), 1, &mut epochs as *mut f32 as *mut c_void))?;
    ort.check((training.save_checkpoint)(state.handle, text(&format!("{out}/trained.checkpoint")).as_ptr(), true))?;
    let (model, logits) = (format!("{out}/trained.onnx"), text("logits"));
    ort.check((training.export_model_for_inferencing)(session.handle, text(&model).as_ptr(), 1, [logits.as_ptr()].as_ptr()))?;
    println!("accuracy {}", ort.accuracy(&env, &options, &memory, &model, &images, &labels)?);
    println!("epochs {epochs}");
    match ort.load_checkpoint("no such checkpoint") {
        Ok(_) => Err("a checkpoint that is not there was loaded".to_string()),
        Err(message) => Ok(println!("refused {}", message.lines().next().unwrap_or(""))),
    }
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let Err(message) = train(&arguments[1], &arguments[2], &arguments[3]) {
        eprintln!("{message}");
        std::process::exit(1);
    }
}
