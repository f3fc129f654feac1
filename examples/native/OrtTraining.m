#import "OrtTraining.h"

#include "ortrain_c_api.h"

enum { MOST = 64 };     // inputs or outputs of a call

NSString *const ORTErrorDomain = @"onnxruntime";

static const OrtApi *ort(void) {
    return OrtGetApiBase()->GetApi(ORT_API_VERSION);
}

static const OrtTrainingApi *training(void) {
    return ort()->GetTrainingApi(ORT_API_VERSION);
}

// Returns whether a call has succeeded, and makes the error of its status otherwise.
static BOOL succeeded(OrtStatus *status, NSError **error) {
    if (status == NULL)
        return YES;
    if (error != NULL) {
        NSString *message = [NSString stringWithUTF8String:ort()->GetErrorMessage(status)];
        *error = [NSError errorWithDomain:ORTErrorDomain
                                     code:ort()->GetErrorCode(status)
                                 userInfo:[NSDictionary dictionaryWithObject:message forKey:NSLocalizedDescriptionKey]];
    }
    ort()->ReleaseStatus(status);
    return NO;
}

// Returns the initialized object where the call has succeeded; releases it and returns nil otherwise.
static id initialized(id object, OrtStatus *status, NSError **error) {
    if (succeeded(status, error))
        return object;
    [object release];
    return nil;
}

@interface ORTValue (Handles)
+ (ORTValue *)valueWithHandle:(OrtValue *)made;
@end

// Fills an array with the handles of values.
static void handles_of(NSArray *values, const OrtValue **handles) {
    for (NSUInteger i = 0; i < [values count]; i++)
        handles[i] = ((ORTValue *)[values objectAtIndex:i])->handle;
}

// Makes values of handles, which they own.
static NSArray *values_of(OrtValue **handles, size_t count) {
    NSMutableArray *values = [NSMutableArray arrayWithCapacity:count];
    for (size_t i = 0; i < count; i++)
        [values addObject:[ORTValue valueWithHandle:handles[i]]];
    return values;
}

@implementation ORTEnv
- (id)initWithLoggingLevel:(ORTLoggingLevel)level error:(NSError **)error {
    self = [super init];
    return initialized(self, ort()->CreateEnv((OrtLoggingLevel)level, "objective-c", &handle), error);
}

- (void)dealloc {
    ort()->ReleaseEnv(handle);
    [super dealloc];
}
@end

@implementation ORTSessionOptions
- (id)initWithError:(NSError **)error {
    self = [super init];
    return initialized(self, ort()->CreateSessionOptions(&handle), error);
}

- (void)dealloc {
    ort()->ReleaseSessionOptions(handle);
    [super dealloc];
}
@end

@implementation ORTValue
+ (ORTValue *)valueWithHandle:(OrtValue *)made {
    ORTValue *value = [[[ORTValue alloc] init] autorelease];
    value->handle = made;
    return value;
}

- (id)initWithTensorData:(NSMutableData *)tensorData
             elementType:(ORTTensorElementDataType)elementType
                   shape:(NSArray *)shape
                   error:(NSError **)error {
    self = [super init];
    data = [tensorData retain];
    int64_t dimensions[MOST];
    for (NSUInteger i = 0; i < [shape count] && i < MOST; i++)
        dimensions[i] = [[shape objectAtIndex:i] longLongValue];
    OrtMemoryInfo *memory = NULL;
    OrtStatus *status = ort()->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory);
    if (status == NULL)
        status = ort()->CreateTensorWithDataAsOrtValue(memory, [data mutableBytes], [data length], dimensions, [shape count],
                                                       (ONNXTensorElementDataType)elementType, &handle);
    ort()->ReleaseMemoryInfo(memory);
    return initialized(self, status, error);
}

- (NSMutableData *)tensorDataWithError:(NSError **)error {
    OrtTensorTypeAndShapeInfo *info;
    void *bytes;
    size_t count;
    if (!succeeded(ort()->GetTensorTypeAndShape(handle, &info), error))
        return nil;
    OrtStatus *status = ort()->GetTensorShapeElementCount(info, &count);
    ort()->ReleaseTensorTypeAndShapeInfo(info);
    if (!succeeded(status, error) || !succeeded(ort()->GetTensorMutableData(handle, &bytes), error))
        return nil;
    return [NSMutableData dataWithBytesNoCopy:bytes length:count * sizeof(float) freeWhenDone:NO];
}

- (void)dealloc {
    ort()->ReleaseValue(handle);
    [data release];
    [super dealloc];
}
@end

@implementation ORTSession
- (id)initWithEnv:(ORTEnv *)environment modelPath:(NSString *)path sessionOptions:(ORTSessionOptions *)options error:(NSError **)error {
    self = [super init];
    env = [environment retain];
    return initialized(self, ort()->CreateSession(env->handle, [path fileSystemRepresentation], options ? options->handle : NULL, &handle), error);
}

- (NSDictionary *)runWithInputs:(NSDictionary *)inputs outputNames:(NSSet *)outputNames runOptions:(id)runOptions error:(NSError **)error {
    NSArray *given = [inputs allKeys], *wanted = [outputNames allObjects];
    const char *input_names[MOST], *output_names[MOST];
    const OrtValue *input_handles[MOST];
    OrtValue *outputs[MOST] = { NULL };
    for (NSUInteger i = 0; i < [given count]; i++) {
        input_names[i] = [[given objectAtIndex:i] UTF8String];
        input_handles[i] = ((ORTValue *)[inputs objectForKey:[given objectAtIndex:i]])->handle;
    }
    for (NSUInteger i = 0; i < [wanted count]; i++)
        output_names[i] = [[wanted objectAtIndex:i] UTF8String];
    if (!succeeded(ort()->Run(handle, NULL, input_names, input_handles, [given count], output_names, [wanted count], outputs), error))
        return nil;
    return [NSDictionary dictionaryWithObjects:values_of(outputs, [wanted count]) forKeys:wanted];
}

- (void)dealloc {
    ort()->ReleaseSession(handle);
    [env release];
    [super dealloc];
}
@end

@implementation ORTCheckpoint
- (id)initWithPath:(NSString *)path error:(NSError **)error {
    self = [super init];
    return initialized(self, training()->LoadCheckpoint([path fileSystemRepresentation], &handle), error);
}

- (BOOL)saveCheckpointToPath:(NSString *)path withOptimizerState:(BOOL)includeOptimizerState error:(NSError **)error {
    return succeeded(training()->SaveCheckpoint(handle, [path fileSystemRepresentation], includeOptimizerState), error);
}

- (BOOL)addFloatPropertyWithName:(NSString *)name value:(float)value error:(NSError **)error {
    return succeeded(training()->AddProperty(handle, [name UTF8String], OrtFloatProperty, &value), error);
}

- (float)getFloatPropertyWithName:(NSString *)name error:(NSError **)error {
    OrtAllocator *allocator;
    enum OrtPropertyType type;
    void *found;
    if (!succeeded(ort()->GetAllocatorWithDefaultOptions(&allocator), error)
        || !succeeded(training()->GetProperty(handle, [name UTF8String], allocator, &type, &found), error))
        return 0;
    float value = type == OrtFloatProperty ? *(float *)found : 0;
    succeeded(ort()->AllocatorFree(allocator, found), error);
    return value;
}

- (void)dealloc {
    training()->ReleaseCheckpointState(handle);
    [super dealloc];
}
@end

@implementation ORTTrainingSession
- (id)initWithEnv:(ORTEnv *)environment
        sessionOptions:(ORTSessionOptions *)options
            checkpoint:(ORTCheckpoint *)state
        trainModelPath:(NSString *)train
         evalModelPath:(NSString *)eval
    optimizerModelPath:(NSString *)optimizer
                 error:(NSError **)error {
    self = [super init];
    env = [environment retain];
    checkpoint = [state retain];
    return initialized(self, training()->CreateTrainingSession(env->handle, options ? options->handle : NULL, checkpoint->handle,
                                                               [train fileSystemRepresentation], eval ? [eval fileSystemRepresentation] : NULL,
                                                               optimizer ? [optimizer fileSystemRepresentation] : NULL, &handle), error);
}

- (NSArray *)trainStepWithInputValues:(NSArray *)inputs error:(NSError **)error {
    const OrtValue *given[MOST];
    OrtValue *made[MOST] = { NULL };
    size_t count;
    handles_of(inputs, given);
    if (!succeeded(training()->TrainingSessionGetTrainingModelOutputCount(handle, &count), error)
        || !succeeded(training()->TrainStep(handle, NULL, [inputs count], given, count, made), error))
        return nil;
    return values_of(made, count);
}

- (NSArray *)evalStepWithInputValues:(NSArray *)inputs error:(NSError **)error {
    const OrtValue *given[MOST];
    OrtValue *made[MOST] = { NULL };
    size_t count;
    handles_of(inputs, given);
    if (!succeeded(training()->TrainingSessionGetEvalModelOutputCount(handle, &count), error)
        || !succeeded(training()->EvalStep(handle, NULL, [inputs count], given, count, made), error))
        return nil;
    return values_of(made, count);
}

- (BOOL)lazyResetGradWithError:(NSError **)error {
    return succeeded(training()->LazyResetGrad(handle), error);
}

- (BOOL)optimizerStepWithError:(NSError **)error {
    return succeeded(training()->OptimizerStep(handle, NULL), error);
}

- (BOOL)registerLinearLRSchedulerWithWarmupStepCount:(int64_t)warmup totalStepCount:(int64_t)total initialLr:(float)rate error:(NSError **)error {
    return succeeded(training()->RegisterLinearLRScheduler(handle, warmup, total, rate), error);
}

- (BOOL)schedulerStepWithError:(NSError **)error {
    return succeeded(training()->SchedulerStep(handle), error);
}

- (float)getLearningRateWithError:(NSError **)error {
    float rate = 0;
    return succeeded(training()->GetLearningRate(handle, &rate), error) ? rate : 0;
}

- (BOOL)exportModelForInferenceWithOutputPath:(NSString *)path graphOutputNames:(NSArray *)graphOutputNames error:(NSError **)error {
    const char *names[MOST];
    for (NSUInteger i = 0; i < [graphOutputNames count]; i++)
        names[i] = [[graphOutputNames objectAtIndex:i] UTF8String];
    return succeeded(training()->ExportModelForInferencing(handle, [path fileSystemRepresentation], [graphOutputNames count], names), error);
}

- (void)dealloc {
    training()->ReleaseTrainingSession(handle);
    [checkpoint release];
    [env release];
    [super dealloc];
}
@end
