/* Runs a method of a model with zeros as inputs. Prints its inputs and outputs, and the time of each operation.
 *
 *     cargo build --release -p coremill-capi
 *     cc -o run crates/capi/examples/run.c -Icrates/capi/include -Ltarget/release -lcoremill_capi -Wl,-rpath,$PWD/target/release
 *     ./run MODEL [METHOD]
 *
 * MODEL is an ExecuTorch program (.pte), a package (.mlpackage) or a compiled model (.mlmodelc).
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "coremill.h"

#define MAX_PORTS 64

static void check(CoremillStatus status, const char *what) {
    if (status != COREMILL_STATUS_OK) {
        fprintf(stderr, "error: %s: %s\n", what, coremill_error_message());
        if (coremill_error_hint()) fprintf(stderr, "hint: %s\n", coremill_error_hint());
        exit(1);
    }
}

static size_t bytes_of(int32_t scalar_type) {
    switch (scalar_type) {
    case 2: case 5: case 15: return 2;
    case 3: case 6: return 4;
    case 4: case 7: return 8;
    default: return 1;
    }
}

static void print_tensor(const char *what, const char *name, const CoremillTensor *tensor) {
    printf("%s %s: type %" PRId32 ", [", what, name, tensor->scalar_type);
    for (uint32_t axis = 0; axis < tensor->rank; axis++) {
        printf(axis ? ", %" PRIu64 : "%" PRIu64, tensor->sizes[axis]);
    }
    printf("]\n");
}

/* Memory for a port: the smallest sizes for an input, the largest for an output. Programs state only the largest. */
static CoremillTensor make(const CoremillPort *port, int largest) {
    CoremillTensor tensor = {0};
    size_t count = 1;
    tensor.scalar_type = port->scalar_type;
    tensor.rank = port->rank;
    for (uint32_t axis = 0; axis < port->rank; axis++) {
        uint64_t size = largest || port->least[axis] == 0 ? port->largest[axis] : port->least[axis];
        if (size == UINT64_MAX) {
            size = 0; /* The callback provides the memory. */
        }
        tensor.sizes[axis] = size;
        count *= (size_t)size;
    }
    tensor.length = count * bytes_of(port->scalar_type);
    tensor.data = calloc(tensor.length ? tensor.length : 1, 1);
    if (tensor.data == NULL) {
        fprintf(stderr, "error: no memory\n");
        exit(1);
    }
    return tensor;
}

static CoremillTensor *outputs_of_run;

static int32_t resize(void *context, size_t output, CoremillTensor *tensor) {
    size_t length = bytes_of(tensor->scalar_type);
    (void)context;
    for (uint32_t axis = 0; axis < tensor->rank; axis++) {
        length *= (size_t)tensor->sizes[axis];
    }
    if (length > tensor->length) {
        void *data = realloc(tensor->data, length);
        if (data == NULL) {
            return COREMILL_STATUS_INVALID_ARGUMENT;
        }
        tensor->data = data;
        tensor->length = length;
        outputs_of_run[output].data = data;
        outputs_of_run[output].length = length;
    }
    return COREMILL_STATUS_OK;
}

static void print_operation(void *context, const CoremillOperation *operation) {
    ++*(int *)context;
    printf("  %8.1f us  %s -> %s\n", (double)operation->duration / 1e3, operation->kind, operation->name);
}

int main(int count, char **arguments) {
    if (count < 2) {
        fprintf(stderr, "usage: run MODEL [METHOD]\n");
        return 2;
    }
    CoremillOption options[] = {{"threads", "1"}, {"compute_unit", "all"}};
    CoremillModel model;
    check(coremill_model_load_file(arguments[1], options, 2, &model), "load");
    CoremillMethod method;
    check(coremill_method_load(model, count > 2 ? arguments[2] : NULL, &method), "load the method");
    /* The method keeps everything that it needs from the model. */
    check(coremill_model_free(model), "free the model");

    CoremillTensor inputs[MAX_PORTS], outputs[MAX_PORTS];
    CoremillTensor *tensors[] = {inputs, outputs};
    size_t counts[2];
    for (int32_t kind = COREMILL_PORT_KIND_INPUT; kind <= COREMILL_PORT_KIND_OUTPUT; kind++) {
        check(coremill_method_port_count(method, kind, &counts[kind]), "count");
        if (counts[kind] > MAX_PORTS) {
            fprintf(stderr, "error: %zu tensors; at most %d\n", counts[kind], MAX_PORTS);
            return 1;
        }
        for (size_t index = 0; index < counts[kind]; index++) {
            CoremillPort port;
            check(coremill_method_port(method, kind, index, &port), "describe");
            tensors[kind][index] = make(&port, kind == COREMILL_PORT_KIND_OUTPUT);
            if (kind == COREMILL_PORT_KIND_INPUT) {
                print_tensor("input", port.name, &inputs[index]);
            }
        }
    }

    int operations = 0;
    CoremillHooks hooks = {.context = &operations, .operation = print_operation, .resize = resize};
    outputs_of_run = outputs;
    check(coremill_method_execute(method, inputs, counts[0], outputs, counts[1], &hooks), "run");
    for (size_t index = 0; index < counts[1]; index++) {
        CoremillPort port;
        check(coremill_method_port(method, COREMILL_PORT_KIND_OUTPUT, index, &port), "describe");
        print_tensor("output", port.name, &outputs[index]);
        if (outputs[index].scalar_type == 6 && outputs[index].length >= 4) {
            printf("  first element %g\n", (double)*(float *)outputs[index].data);
        }
        free(outputs[index].data);
    }
    for (size_t index = 0; index < counts[0]; index++) {
        free(inputs[index].data);
    }
    printf("%d operations\n", operations);
    check(coremill_method_free(method), "free");
    return coremill_method_free(method) == COREMILL_STATUS_INVALID_HANDLE ? 0 : 1;
}
