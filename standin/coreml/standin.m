// Stands in for Core ML on GNUstep: models that compute, and all that can go wrong with them.
//
// A "package" and a "compiled model" are directories with a property list, `model.plist`. Where there is none, the
// variable `COREMILL_STANDIN_MODEL` holds it: real packages have the shape that it says, and compute what it says.
//
//   functions  by name: { inputs, outputs, states: ({ name, type, shape, enumerated, ranges }), does }
//   compile    "slow" takes a second, "error" fails, "raise" raises, "silent" never answers
//   load       the same
//   pads       outputs have rows that are so much longer
//   refuses    memory for outputs is refused
//
// What a function does: "affine" gives 2 x + 1 for each input in order of names; "add" adds the input to the state and
// gives the sum; "error" and "raise" fail. Blocks are called by hand: GCC has no syntax for them.

#import <Foundation/Foundation.h>
#include <objc/message.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

// What objc2 calls and GCC's runtime does not have.

id objc_retain(id object) { return [object retain]; }
void objc_release(id object) { [object release]; }
id objc_autorelease(id object) { return [object autorelease]; }
id objc_retainAutoreleasedReturnValue(id object) { return [object retain]; }
void *objc_autoreleasePoolPush(void) { return [[NSAutoreleasePool alloc] init]; }
void objc_autoreleasePoolPop(void *pool) { [(id)pool drain]; }

// The header has it inline only.
Class standin_class(id object) __asm__("object_getClass");
Class standin_class(id object) { return object ? object->class_pointer : Nil; }

unsigned char standin_try_catch(void (*act)(void *), void *context, id *exception) {
    @try {
        act(context);
        return 0;
    } @catch (id raised) {
        *exception = [raised retain];
        return 1;
    }
}

int sysctlbyname(const char *name, void *old, size_t *length, const void *new, size_t new_length) {
    const char *value = strcmp(name, "kern.osversion") == 0             ? "24A335"
                        : strcmp(name, "machdep.cpu.brand_string") == 0 ? "Stand-in M0"
                        : strcmp(name, "hw.model") == 0                 ? "Standin1,1"
                                                                        : NULL;
    if (!value || strlen(value) + 1 > *length) return -1;
    memcpy(old, value, *length = strlen(value) + 1);
    return 0;
}

// Blocks.

struct block {
    void *isa;
    int flags, reserved;
    void (*invoke)(void);
};
extern void *_Block_copy(const void *);
extern void _Block_release(const void *);

static void call2(void *block, void *one, void *two) {
    ((void (*)(void *, void *, void *))((struct block *)block)->invoke)(block, one, two);
}

// Objects that live, to find leaks.

static long alive;
static long made;
long standin_alive(void) { return __atomic_load_n(&alive, __ATOMIC_SEQ_CST); }
long standin_made(void) { return __atomic_load_n(&made, __ATOMIC_SEQ_CST); }

@interface Counted : NSObject
@end
@implementation Counted
// GNUstep takes the first thread that it sees for the main one, with which the process ends.
+ (void)load {
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    [NSThread currentThread];
    [pool drain];
}
+ (id)allocWithZone:(NSZone *)zone {
    __atomic_fetch_add(&alive, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&made, 1, __ATOMIC_SEQ_CST);
    return [super allocWithZone:zone];
}
- (void)dealloc {
    __atomic_fetch_sub(&alive, 1, __ATOMIC_SEQ_CST);
    [super dealloc];
}
@end

static NSError *failure(NSString *what) {
    NSDictionary *info = [NSDictionary dictionaryWithObject:what forKey:NSLocalizedDescriptionKey];
    return [NSError errorWithDomain:@"com.apple.CoreML" code:7 userInfo:info];
}

// Arrays.

enum { FLOAT16 = 0x10010, FLOAT32 = 0x10020, FLOAT64 = 0x10040, INT32 = 0x20020, INT8 = 0x20008 };

static NSInteger type_named(NSString *name) {
    if ([name isEqual:@"fp16"]) return FLOAT16;
    if ([name isEqual:@"fp64"]) return FLOAT64;
    if ([name isEqual:@"int32"]) return INT32;
    if ([name isEqual:@"int8"]) return INT8;
    return FLOAT32;
}

static double load(const char *at, NSInteger type) {
    switch (type) {
    case FLOAT16: return *(const _Float16 *)at;
    case FLOAT64: return *(const double *)at;
    case INT32: return *(const int *)at;
    case INT8: return *(const signed char *)at;
    default: return *(const float *)at;
    }
}

static void store(char *at, NSInteger type, double value) {
    switch (type) {
    case FLOAT16: *(_Float16 *)at = value; break;
    case FLOAT64: *(double *)at = value; break;
    case INT32: *(int *)at = value; break;
    case INT8: *(signed char *)at = value; break;
    default: *(float *)at = value;
    }
}

static NSArray *numbers(NSArray *texts) {
    NSMutableArray *all = [NSMutableArray array];
    for (id text in texts) [all addObject:[NSNumber numberWithInteger:[text integerValue]]];
    return all;
}

@interface MLMultiArray : Counted {
  @public
    char *data;
    BOOL owned;
    NSInteger type;
    NSArray *shape, *strides;
}
@end
@implementation MLMultiArray
- (id)initWithDataPointer:(void *)pointer
                    shape:(NSArray *)theShape
                 dataType:(NSInteger)theType
                  strides:(NSArray *)theStrides
              deallocator:(void *)deallocator
                    error:(NSError **)error {
    if ((self = [super init])) {
        data = pointer;
        type = theType;
        shape = [theShape copy];
        strides = [theStrides copy];
    }
    return self;
}
- (id)initWithShape:(NSArray *)theShape dataType:(NSInteger)theType pad:(NSInteger)pad {
    NSMutableArray *steps = [NSMutableArray array];
    NSInteger step = 1;
    for (NSInteger axis = [theShape count] - 1; axis >= 0; axis--) {
        [steps insertObject:[NSNumber numberWithInteger:step] atIndex:0];
        step *= [[theShape objectAtIndex:axis] integerValue];
        if (axis == (NSInteger)[theShape count] - 1) step += pad;
    }
    void *memory = calloc(step, (theType & 0xffff) / 8);
    self = [self initWithDataPointer:memory shape:theShape dataType:theType strides:steps deallocator:NULL error:NULL];
    owned = YES;
    return self;
}
- (id)initWithShape:(NSArray *)theShape dataType:(NSInteger)theType error:(NSError **)error {
    // As on the Neural Engine, rows have room behind them.
    return [self initWithShape:theShape dataType:theType pad:3];
}
- (void)dealloc {
    if (owned) free(data);
    [shape release];
    [strides release];
    [super dealloc];
}
- (NSInteger)dataType { return type; }
- (NSArray *)shape { return [[shape retain] autorelease]; }
- (NSArray *)strides { return [[strides retain] autorelease]; }
- (NSInteger)count {
    NSInteger count = 1;
    for (NSNumber *size in shape) count *= [size integerValue];
    return count;
}
- (NSInteger)bytes {
    NSInteger last = 0;
    for (NSUInteger axis = 0; axis < [shape count]; axis++)
        last += ([[shape objectAtIndex:axis] integerValue] - 1) * [[strides objectAtIndex:axis] integerValue];
    return (last + 1) * (type & 0xffff) / 8;
}
- (char *)at:(NSInteger)index {
    NSInteger place = 0;
    for (NSInteger axis = [shape count] - 1; axis >= 0; axis--) {
        NSInteger size = [[shape objectAtIndex:axis] integerValue];
        place += index % size * [[strides objectAtIndex:axis] integerValue];
        index /= size;
    }
    return data + place * (type & 0xffff) / 8;
}
- (void)getBytesWithHandler:(void *)handler { call2(handler, data, (void *)[self bytes]); }
- (void)getMutableBytesWithHandler:(void *)handler {
    ((void (*)(void *, void *, NSInteger, id))((struct block *)handler)->invoke)(handler, data, [self bytes], strides);
}
@end

// Features.

@interface MLFeatureValue : Counted {
    MLMultiArray *array;
}
@end
@implementation MLFeatureValue
+ (id)featureValueWithMultiArray:(MLMultiArray *)value {
    MLFeatureValue *made = [[[self alloc] init] autorelease];
    made->array = [value retain];
    return made;
}
- (void)dealloc {
    [array release];
    [super dealloc];
}
- (MLMultiArray *)multiArrayValue { return [[array retain] autorelease]; }
@end

@interface MLDictionaryFeatureProvider : Counted {
    NSDictionary *values;
}
@end
@implementation MLDictionaryFeatureProvider
- (id)initWithDictionary:(NSDictionary *)dictionary error:(NSError **)error {
    if ((self = [super init])) values = [dictionary copy];
    return self;
}
- (void)dealloc {
    [values release];
    [super dealloc];
}
- (NSSet *)featureNames { return [NSSet setWithArray:[values allKeys]]; }
- (MLFeatureValue *)featureValueForName:(NSString *)name { return [values objectForKey:name]; }
@end

@interface MLArrayBatchProvider : Counted {
    NSArray *items;
}
@end
@implementation MLArrayBatchProvider
- (id)initWithFeatureProviderArray:(NSArray *)array {
    if ((self = [super init])) items = [array copy];
    return self;
}
- (void)dealloc {
    [items release];
    [super dealloc];
}
- (NSInteger)count { return [items count]; }
- (id)featuresAtIndex:(NSInteger)index { return [items objectAtIndex:index]; }
@end

// Options.

@interface MLOptimizationHints : Counted {
    NSInteger reshapes, strategy;
}
@end
@implementation MLOptimizationHints
- (void)setReshapeFrequency:(NSInteger)value { reshapes = value; }
- (void)setSpecializationStrategy:(NSInteger)value { strategy = value; }
@end

@interface MLModelConfiguration : Counted {
  @public
    NSInteger units;
    NSString *function;
    MLOptimizationHints *hints;
}
@end
@implementation MLModelConfiguration
- (void)dealloc {
    [function release];
    [hints release];
    [super dealloc];
}
- (void)setComputeUnits:(NSInteger)value { units = value; }
- (void)setAllowLowPrecisionAccumulationOnGPU:(BOOL)value {}
- (void)setFunctionName:(NSString *)name {
    [function autorelease];
    function = [name copy];
}
- (void)setOptimizationHints:(MLOptimizationHints *)value {
    [hints autorelease];
    hints = [value retain];
}
@end

@interface MLPredictionOptions : Counted {
  @public
    NSDictionary *backings;
}
@end
@implementation MLPredictionOptions
- (void)dealloc {
    [backings release];
    [super dealloc];
}
- (void)setOutputBackings:(NSDictionary *)value {
    [backings autorelease];
    backings = [value copy];
}
@end

// Descriptions. One class serves for all constraints.

@interface MLMultiArrayConstraint : Counted {
  @public
    NSDictionary *port;
}
@end
@implementation MLMultiArrayConstraint
- (void)dealloc {
    [port release];
    [super dealloc];
}
- (NSArray *)shape { return numbers([port objectForKey:@"shape"]); }
- (NSArray *)bufferShape { return [self shape]; }
- (NSInteger)dataType { return type_named([port objectForKey:@"type"]); }
- (id)shapeConstraint { return self; }
- (NSInteger)type { return [port objectForKey:@"enumerated"] ? 2 : [port objectForKey:@"ranges"] ? 3 : 1; }
- (NSArray *)enumeratedShapes {
    NSMutableArray *shapes = [NSMutableArray array];
    for (NSArray *one in [port objectForKey:@"enumerated"]) [shapes addObject:numbers(one)];
    return shapes;
}
- (NSArray *)sizeRangeForDimension {
    NSMutableArray *ranges = [NSMutableArray array];
    for (NSArray *one in [port objectForKey:@"ranges"]) {
        NSInteger first = [[one objectAtIndex:0] integerValue], last = [[one objectAtIndex:1] integerValue];
        [ranges addObject:[NSValue valueWithRange:NSMakeRange(first, last - first + 1)]];
    }
    return ranges;
}
@end

@interface MLFeatureDescription : Counted {
  @public
    NSDictionary *port;
    BOOL state;
}
@end
@implementation MLFeatureDescription
- (void)dealloc {
    [port release];
    [super dealloc];
}
- (id)constraint {
    MLMultiArrayConstraint *made = [[[MLMultiArrayConstraint alloc] init] autorelease];
    made->port = [port retain];
    return made;
}
- (BOOL)isOptional { return [[port objectForKey:@"optional"] boolValue]; }
- (id)multiArrayConstraint { return state || [[port objectForKey:@"type"] isEqual:@"image"] ? nil : [self constraint]; }
- (id)stateConstraint { return state ? [self constraint] : nil; }
@end

@interface MLModelDescription : Counted {
  @public
    NSDictionary *function;
}
@end
@implementation MLModelDescription
- (void)dealloc {
    [function release];
    [super dealloc];
}
- (NSDictionary *)describe:(NSString *)what {
    NSMutableDictionary *all = [NSMutableDictionary dictionary];
    for (NSDictionary *port in [function objectForKey:what]) {
        MLFeatureDescription *made = [[[MLFeatureDescription alloc] init] autorelease];
        made->port = [port retain];
        made->state = [what isEqual:@"states"];
        [all setObject:made forKey:[port objectForKey:@"name"]];
    }
    return all;
}
- (NSDictionary *)inputDescriptionsByName { return [self describe:@"inputs"]; }
- (NSDictionary *)outputDescriptionsByName { return [self describe:@"outputs"]; }
- (NSDictionary *)stateDescriptionsByName { return [self describe:@"states"]; }
@end

// States.

@interface MLState : Counted {
  @public
    NSMutableDictionary *arrays;
}
@end
@implementation MLState
- (void)dealloc {
    [arrays release];
    [super dealloc];
}
- (void)getMultiArrayForStateNamed:(NSString *)name handler:(void *)handler {
    MLMultiArray *array = [arrays objectForKey:name];
    if (!array) [NSException raise:NSInvalidArgumentException format:@"no state named %@", name];
    ((void (*)(void *, id))((struct block *)handler)->invoke)(handler, array);
}
@end

// Models.

// Work for a thread of Core ML's own.
@interface Job : Counted {
  @public
    NSURL *url;
    MLModelConfiguration *configuration;
    void *handler;
    id target;
    SEL method;
}
@end
@implementation Job
- (void)dealloc {
    [url release];
    [configuration release];
    if (handler) _Block_release(handler);
    [super dealloc];
}
@end

// Performs a job on a thread of its own, and releases it.
static void *work(void *job) {
    GSRegisterCurrentThread();
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    [((Job *)job)->target performSelector:((Job *)job)->method withObject:job];
    [pool drain];
    [(Job *)job release];
    GSUnregisterCurrentThread();
    return NULL;
}

static void perform(Job *job, id target, SEL method) {
    job->target = target;
    job->method = method;
    pthread_t thread;
    pthread_create(&thread, NULL, work, job);
    pthread_detach(thread);
}

@interface MLModel : Counted {
    NSDictionary *plist, *function;
}
+ (NSArray *)availableComputeDevices;
- (id)predictionFromFeatures:(id)features
                  usingState:(MLState *)state
                     options:(MLPredictionOptions *)options
                       error:(NSError **)error;
@end

static NSDictionary *read_plist(NSURL *url) {
    NSString *path = [[url path] stringByAppendingPathComponent:@"model.plist"];
    NSDictionary *plist = [NSDictionary dictionaryWithContentsOfFile:path];
    const char *otherwise = getenv("COREMILL_STANDIN_MODEL");
    if (plist || !otherwise) return plist;
    return [[NSString stringWithUTF8String:otherwise] propertyList];
}

// Starts a method on a thread of its own, unless the model never answers.
static void start(NSURL *url, NSString *step, MLModelConfiguration *configuration, void *handler, SEL method) {
    NSString *how = [read_plist(url) objectForKey:step];
    if ([how isEqual:@"raise"]) [NSException raise:NSInternalInconsistencyException format:@"cannot %@ this", step];
    if ([how isEqual:@"silent"]) return;
    Job *job = [[Job alloc] init];
    job->url = [url retain];
    job->configuration = [configuration retain];
    job->handler = _Block_copy(handler);
    perform(job, objc_lookUpClass("MLModel"), method);
}

@implementation MLModel
+ (void)compileModelAtURL:(NSURL *)url completionHandler:(void *)handler {
    start(url, @"compile", nil, handler, @selector(compileJob:));
}
+ (void)compileJob:(Job *)job {
    NSDictionary *plist = read_plist(job->url);
    NSString *how = [plist objectForKey:@"compile"];
    if ([how isEqual:@"slow"]) sleep(1);
    if (!plist || [how isEqual:@"error"]) {
        call2(job->handler, nil, failure(@"the model is not valid"));
    } else {
        NSString *name = [NSString stringWithFormat:@"%@.mlmodelc", [[NSProcessInfo processInfo] globallyUniqueString]];
        NSString *place = [NSTemporaryDirectory() stringByAppendingPathComponent:name];
        [[NSFileManager defaultManager] copyItemAtPath:[job->url path] toPath:place error:NULL];
        [@"compiled" writeToFile:[place stringByAppendingPathComponent:@"coremldata.bin"] atomically:NO];
        call2(job->handler, [NSURL fileURLWithPath:place], nil);
    }
}
+ (void)loadContentsOfURL:(NSURL *)url configuration:(MLModelConfiguration *)configuration completionHandler:(void *)handler {
    start(url, @"load", configuration, handler, @selector(loadJob:));
}
+ (void)loadJob:(Job *)job {
    NSDictionary *plist = read_plist(job->url);
    NSString *how = [plist objectForKey:@"load"], *name = job->configuration->function;
    NSDictionary *function = [[plist objectForKey:@"functions"] objectForKey:name ? name : @"main"];
    NSString *mark = [[job->url path] stringByAppendingPathComponent:@"coremldata.bin"];
    if ([how isEqual:@"slow"]) sleep(1);
    if (![[NSFileManager defaultManager] fileExistsAtPath:mark]) {
        call2(job->handler, nil, failure(@"the model is not compiled"));
    } else if ([how isEqual:@"error"]) {
        call2(job->handler, nil, failure(@"the model does not load"));
    } else if (!function) {
        call2(job->handler, nil, failure([NSString stringWithFormat:@"no function %@", name]));
    } else {
        MLModel *model = [[[MLModel alloc] init] autorelease];
        model->plist = [plist retain];
        model->function = [function retain];
        call2(job->handler, model, nil);
    }
}
- (void)dealloc {
    [plist release];
    [function release];
    [super dealloc];
}
- (MLModelDescription *)modelDescription {
    MLModelDescription *made = [[[MLModelDescription alloc] init] autorelease];
    made->function = [function retain];
    return made;
}
- (MLState *)newState {
    MLState *state = [[MLState alloc] init];
    state->arrays = [[NSMutableDictionary alloc] init];
    for (NSDictionary *port in [function objectForKey:@"states"]) {
        MLMultiArray *array = [[MLMultiArray alloc] initWithShape:numbers([port objectForKey:@"shape"])
                                                         dataType:type_named([port objectForKey:@"type"])
                                                              pad:5];
        [state->arrays setObject:array forKey:[port objectForKey:@"name"]];
        [array release];
    }
    return state;
}
- (id)predictionFromFeatures:(id)features options:(MLPredictionOptions *)options error:(NSError **)error {
    return [self predictionFromFeatures:features usingState:nil options:options error:error];
}
- (id)predictionFromFeatures:(id)features
                  usingState:(MLState *)state
                     options:(MLPredictionOptions *)options
                       error:(NSError **)error {
    NSString *does = [function objectForKey:@"does"];
    if ([does isEqual:@"raise"]) [NSException raise:NSInvalidArgumentException format:@"the features are odd"];
    if ([does isEqual:@"error"] || (options && [plist objectForKey:@"refuses"] && [options->backings count])) {
        *error = failure(@"the prediction failed");
        return nil;
    }
    NSMutableDictionary *results = [NSMutableDictionary dictionary];
    NSArray *inputs = [function objectForKey:@"inputs"], *outputs = [function objectForKey:@"outputs"];
    for (NSUInteger index = 0; index < [outputs count]; index++) {
        NSDictionary *port = [outputs objectAtIndex:index];
        NSString *name = [port objectForKey:@"name"];
        NSDictionary *given = [inputs objectAtIndex:index % [inputs count]];
        MLMultiArray *x = [[features featureValueForName:[given objectForKey:@"name"]] multiArrayValue];
        MLMultiArray *y = options ? [options->backings objectForKey:name] : nil;
        if (!y)
            y = [[[MLMultiArray alloc] initWithShape:x->shape
                                            dataType:type_named([port objectForKey:@"type"])
                                                 pad:[[plist objectForKey:@"pads"] integerValue]] autorelease];
        MLMultiArray *sum = state ? [[state->arrays allValues] lastObject] : nil;
        for (NSInteger at = 0; at < [x count]; at++) {
            double value = load([x at:at], x->type);
            if (sum) {
                value += load([sum at:at], sum->type);
                store([sum at:at], sum->type, value);
            } else {
                value = 2 * value + 1;
            }
            store([y at:at], y->type, value);
        }
        [results setObject:[MLFeatureValue featureValueWithMultiArray:y] forKey:name];
    }
    return [[[MLDictionaryFeatureProvider alloc] initWithDictionary:results error:NULL] autorelease];
}
- (id)predictionsFromBatch:(id)batch error:(NSError **)error {
    NSMutableArray *items = [NSMutableArray array];
    for (NSInteger index = 0; index < [batch count]; index++) {
        id item = [self predictionFromFeatures:[batch featuresAtIndex:index] usingState:nil options:nil error:error];
        if (!item) return nil;
        [items addObject:item];
    }
    return [[[MLArrayBatchProvider alloc] initWithFeatureProviderArray:items] autorelease];
}
+ (NSArray *)availableComputeDevices {
    return [NSArray arrayWithObjects:[[[objc_lookUpClass("MLCPUComputeDevice") alloc] init] autorelease],
                                     [[[objc_lookUpClass("MLNeuralEngineComputeDevice") alloc] init] autorelease], nil];
}
@end

@interface MLCPUComputeDevice : Counted
@end
@implementation MLCPUComputeDevice
@end
@interface MLNeuralEngineComputeDevice : Counted
@end
@implementation MLNeuralEngineComputeDevice
- (NSInteger)totalCoreCount { return 16; }
@end

// Plans: one operation for each function, which the Neural Engine prefers, within one that it cannot run. One class
// serves for all parts.

@interface MLComputePlan : Counted {
  @public
    NSDictionary *plist;
    NSString *name;
    BOOL inner;
}
@end
@implementation MLComputePlan
+ (void)loadContentsOfURL:(NSURL *)url configuration:(MLModelConfiguration *)configuration completionHandler:(void *)handler {
    Job *job = [[Job alloc] init];
    job->url = [url retain];
    job->handler = _Block_copy(handler);
    perform(job, objc_lookUpClass("MLComputePlan"), @selector(job:));
}
+ (void)job:(Job *)job {
    MLComputePlan *plan = [[[MLComputePlan alloc] init] autorelease];
    plan->plist = [read_plist(job->url) retain];
    call2(job->handler, plan->plist ? plan : nil, plan->plist ? nil : failure(@"no model"));
}
- (void)dealloc {
    [plist release];
    [name release];
    [super dealloc];
}
- (MLComputePlan *)part:(NSString *)theName inner:(BOOL)isInner {
    MLComputePlan *made = [[[MLComputePlan alloc] init] autorelease];
    made->plist = [plist retain];
    made->name = [theName copy];
    made->inner = isInner;
    return made;
}
- (id)modelStructure { return self; }
- (id)program { return [plist objectForKey:@"functions"] ? self : nil; }
- (NSDictionary *)functions {
    NSMutableDictionary *all = [NSMutableDictionary dictionary];
    for (NSString *key in [plist objectForKey:@"functions"]) [all setObject:[self part:key inner:NO] forKey:key];
    return all;
}
- (id)block { return self; }
- (NSArray *)operations { return [NSArray arrayWithObject:self]; }
- (NSString *)operatorName { return inner ? @"ios17.add" : @"while_loop"; }
- (NSArray *)outputs { return [NSArray arrayWithObject:[self part:@"sum" inner:NO]]; }
- (NSString *)name { return [[name retain] autorelease]; }
- (NSArray *)blocks { return inner ? [NSArray array] : [NSArray arrayWithObject:[self part:name inner:YES]]; }
- (id)computeDeviceUsageForMLProgramOperation:(MLComputePlan *)operation { return operation; }
- (id)estimatedCostOfMLProgramOperation:(MLComputePlan *)operation { return operation->inner ? operation : nil; }
- (double)weight { return 0.75; }
- (NSArray *)supportedComputeDevices {
    NSArray *all = [MLModel availableComputeDevices];
    return inner ? all : [all subarrayWithRange:NSMakeRange(0, 1)];
}
- (id)preferredComputeDevice { return [[self supportedComputeDevices] lastObject]; }
@end
