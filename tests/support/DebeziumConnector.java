import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.cloud.Timestamp;
import io.apicurio.registry.utils.converter.avro.AvroData;
import io.debezium.config.Configuration;
import io.debezium.connector.base.ChangeEventQueue;
import io.debezium.connector.base.DefaultQueueProvider;
import io.debezium.connector.common.DebeziumHeaderProducer;
import io.debezium.connector.spanner.SpannerChangeEventCreator;
import io.debezium.connector.spanner.SpannerConnectorConfig;
import io.debezium.connector.spanner.SpannerPartition;
import io.debezium.connector.spanner.config.SpannerTableFilter;
import io.debezium.connector.spanner.context.offset.SpannerOffsetContextFactory;
import io.debezium.connector.spanner.context.source.SourceInfoFactory;
import io.debezium.connector.spanner.context.source.SpannerSourceTaskContext;
import io.debezium.connector.spanner.db.dao.SchemaDao;
import io.debezium.connector.spanner.db.mapper.parser.ColumnTypeParser;
import io.debezium.connector.spanner.db.metadata.SchemaRegistry;
import io.debezium.connector.spanner.db.metadata.TableId;
import io.debezium.connector.spanner.db.model.Mod;
import io.debezium.connector.spanner.db.model.ModType;
import io.debezium.connector.spanner.db.model.StreamEventMetadata;
import io.debezium.connector.spanner.db.model.ValueCaptureType;
import io.debezium.connector.spanner.db.model.event.DataChangeEvent;
import io.debezium.connector.spanner.db.model.schema.ChangeStreamSchema;
import io.debezium.connector.spanner.db.model.schema.Column;
import io.debezium.connector.spanner.db.model.schema.SpannerSchema;
import io.debezium.connector.spanner.kafka.KafkaPartitionInfoProvider;
import io.debezium.connector.spanner.processor.SpannerChangeRecordEmitter;
import io.debezium.connector.spanner.processor.SpannerEventDispatcher;
import io.debezium.connector.spanner.processor.heartbeat.SpannerHeartbeatFactory;
import io.debezium.connector.spanner.processor.metadata.SpannerEventMetadataProvider;
import io.debezium.connector.spanner.schema.KafkaSpannerSchema;
import io.debezium.connector.spanner.schema.KafkaSpannerTableSchemaFactory;
import io.debezium.schema.DefaultTopicNamingStrategy;
import io.debezium.schema.SchemaNameAdjuster;
import io.debezium.spi.topic.TopicNamingStrategy;
import io.debezium.util.Clock;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;

/**
 * Prints the messages that Debezium's connector makes of data change records, by its own classes.
 *
 * <p>Standard input is {"properties": {...}, "tables": {name: [[column, type, isKey, isNullable]]},
 * "dialect", "lowWatermark", "records": [...]}; the output is a line for each message.
 */
public class DebeziumConnector {
    private static final ObjectMapper JSON = new ObjectMapper().configure(JsonGenerator.Feature.ESCAPE_NON_ASCII, true);

    /** The schema of the input instead of a database's. */
    private static class Dao extends SchemaDao {
        private final JsonNode input;

        Dao(JsonNode input) {
            super(null);
            this.input = input;
        }

        @Override
        public SpannerSchema getSchema(Timestamp timestamp) {
            SpannerSchema.SpannerSchemaBuilder builder = SpannerSchema.builder();
            input.get("tables").fields().forEachRemaining(table -> {
                builder.addPrimaryColumn(table.getKey(), "");
                for (JsonNode column : table.getValue()) {
                    if (column.get(2).asBoolean()) {
                        builder.addPrimaryColumn(table.getKey(), column.get(0).asText());
                    }
                }
                int place = 1;
                for (JsonNode column : table.getValue()) {
                    builder.addColumn(table.getKey(), column.get(0).asText(), column.get(1).asText(), place++,
                            column.get(3).asBoolean(), com.google.cloud.spanner.Dialect.valueOf(input.get("dialect").asText()));
                }
            });
            return builder.build();
        }

        @Override
        public ChangeStreamSchema getStream(Timestamp timestamp, String name) {
            return ChangeStreamSchema.builder().name(name).allTables(true).build();
        }

        @Override
        public boolean isPostgres() {
            return input.get("dialect").asText().equals("POSTGRESQL");
        }
    }

    /** Topics of one partition. */
    private static class OnePartition extends KafkaPartitionInfoProvider {
        OnePartition() {
            super(null);
        }

        @Override
        public Collection<Integer> getPartitions(String topic, Optional<Integer> count) {
            return List.of(0);
        }
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode input = JSON.readTree(System.in);
        Properties properties = new Properties();
        input.get("properties").fields().forEachRemaining(p -> properties.put(p.getKey(), p.getValue().asText()));
        Configuration raw = Configuration.from(properties);
        SpannerConnectorConfig config = new SpannerConnectorConfig(raw);
        TopicNamingStrategy<TableId> topics = (TopicNamingStrategy<TableId>) (TopicNamingStrategy<?>) DefaultTopicNamingStrategy.create(config);
        SchemaNameAdjuster adjuster = config.schemaNameAdjuster();
        SchemaRegistry registry = new SchemaRegistry(config.changeStreamName(), new Dao(input), () -> {
        });
        registry.init("task");
        Timestamp lowWatermark = Timestamp.parseTimestamp(input.get("lowWatermark").asText());
        SourceInfoFactory sources = new SourceInfoFactory(config, () -> lowWatermark);
        KafkaSpannerSchema schema = new KafkaSpannerSchema(new KafkaSpannerTableSchemaFactory(
                topics, adjuster, registry, config.getSourceInfoStructMaker().schema()));
        DefaultQueueProvider<io.debezium.pipeline.DataChangeEvent> provider = new DefaultQueueProvider<>();
        provider.configure(Map.of("max.queue.size", 20_000));
        ChangeEventQueue<io.debezium.pipeline.DataChangeEvent> queue = new ChangeEventQueue.Builder<io.debezium.pipeline.DataChangeEvent>()
                .pollInterval(Duration.ofMillis(1)).maxBatchSize(10_000).maxQueueSize(20_000)
                .queueProvider(provider)
                .loggingContextSupplier(() -> io.debezium.util.LoggingContext.forConnector("spanner", "name", "task"))
                .build();
        SpannerEventDispatcher dispatcher = new SpannerEventDispatcher(config, topics, schema, queue,
                new SpannerTableFilter(config), new SpannerChangeEventCreator(), new SpannerEventMetadataProvider(),
                new SpannerHeartbeatFactory(), adjuster, registry, sources, new OnePartition(),
                new DebeziumHeaderProducer(new SpannerSourceTaskContext(raw, config)));
        for (JsonNode record : input.get("records")) {
            dispatch(dispatcher, registry, config, new SpannerOffsetContextFactory(sources), event(record));
        }
        dispatcher.publishLowWatermarkStampEvent();
        print(queue.poll());
    }

    private static void dispatch(SpannerEventDispatcher dispatcher, SchemaRegistry registry, SpannerConnectorConfig config,
                                 SpannerOffsetContextFactory offsets, DataChangeEvent event)
            throws InterruptedException {
        TableId table = TableId.getTableId(event.getTableName());
        registry.checkSchema(table, event.getCommitTimestamp(), event.getRowType());
        SpannerPartition partition = new SpannerPartition(event.getPartitionToken());
        for (Mod mod : event.getMods()) {
            dispatcher.dispatchDataChangeEvent(partition, table, new SpannerChangeRecordEmitter("uid", event.getModType(),
                    mod, partition, offsets.getOffsetContextFromDataChangeEvent(mod.getModNumber(), event), Clock.SYSTEM, config));
        }
    }

    private static DataChangeEvent event(JsonNode record) throws Exception {
        List<Column> columns = new ArrayList<>();
        for (JsonNode column : record.get("column_types")) {
            columns.add(new Column(column.get("name").asText(), ColumnTypeParser.parse(column.get("type").asText()),
                    column.get("is_primary_key").asBoolean(), column.get("ordinal_position").asLong(), null));
        }
        List<Mod> mods = new ArrayList<>();
        for (JsonNode mod : record.get("mods")) {
            mods.add(new Mod(mods.size(), JSON.readTree(mod.get("keys").asText()),
                    JSON.readTree(mod.get("old_values").asText()), JSON.readTree(mod.get("new_values").asText())));
        }
        Timestamp committed = Timestamp.parseTimestamp(record.get("commit_timestamp").asText());
        StreamEventMetadata metadata = StreamEventMetadata.newBuilder().withRecordTimestamp(committed)
                .withPartitionToken(record.get("partition_token").asText()).withPartitionStartTimestamp(committed)
                .withRecordReadAt(Timestamp.now()).withQueryStartedAt(committed).build();
        return new DataChangeEvent(record.get("partition_token").asText(), committed,
                record.get("server_transaction_id").asText(),
                record.get("is_last_record_in_transaction_in_partition").asBoolean(), record.get("record_sequence").asText(),
                record.get("table_name").asText(), columns, mods, ModType.valueOf(record.get("mod_type").asText()),
                ValueCaptureType.valueOf(record.get("value_capture_type").asText()),
                record.get("number_of_records_in_transaction").asLong(),
                record.get("number_of_partitions_in_transaction").asLong(), record.get("transaction_tag").asText(),
                record.get("is_system_transaction").asBoolean(), metadata);
    }

    private static void print(List<io.debezium.pipeline.DataChangeEvent> events) throws Exception {
        JsonConverter keys = new JsonConverter();
        keys.configure(Map.of("schemas.enable", "true"), true);
        JsonConverter values = new JsonConverter();
        values.configure(Map.of("schemas.enable", "true"), false);
        AvroData avro = new AvroData(100);
        Object protobuf = protobufConverter();
        SimpleHeaderConverter headers = new SimpleHeaderConverter();
        for (io.debezium.pipeline.DataChangeEvent event : events) {
            SourceRecord record = event.getRecord();
            ObjectNode line = JSON.createObjectNode();
            line.put("topic", record.topic());
            line.set("partition", JSON.valueToTree(record.kafkaPartition()));
            line.set("key", tree(keys.fromConnectData(record.topic(), record.keySchema(), record.key())));
            line.set("value", tree(values.fromConnectData(record.topic(), record.valueSchema(), record.value())));
            line.set("avro_key", avroSchema(avro, record.keySchema()));
            line.set("avro_value", avroSchema(avro, record.valueSchema()));
            if (protobuf != null) {
                line.set("protobuf_key", inProtobuf(protobuf, record.keySchema(), record.key()));
                line.set("protobuf_value", inProtobuf(protobuf, record.valueSchema(), record.value()));
            }
            ObjectNode named = line.putObject("headers");
            for (Header header : record.headers()) {
                named.put(header.key(), new String(headers.fromConnectHeader(record.topic(), header.key(), header.schema(), header.value()),
                        StandardCharsets.UTF_8));
            }
            System.out.println(JSON.writeValueAsString(line));
        }
    }

    private static JsonNode avroSchema(AvroData avro, Schema schema) throws Exception {
        return schema == null ? null : JSON.readTree(avro.fromConnectSchema(schema).toString());
    }

    /** Confluent's converter, if its classes were built. */
    private static Object protobufConverter() throws ReflectiveOperationException {
        try {
            return Class.forName("io.confluent.connect.protobuf.ProtobufData").getConstructor().newInstance();
        } catch (ClassNotFoundException e) {
            return null;
        }
    }

    /** The schema as text, and the message; without a message if the converter ends at it. */
    private static JsonNode inProtobuf(Object converter, Schema schema, Object value) throws ReflectiveOperationException {
        if (schema == null) {
            return null;
        }
        ObjectNode made = JSON.createObjectNode();
        Object of = converter.getClass().getMethod("fromConnectSchema", Schema.class).invoke(converter, schema);
        made.put("schema", (String) of.getClass().getMethod("canonicalString").invoke(of));
        try {
            Object both = converter.getClass().getMethod("fromConnectData", Schema.class, Object.class).invoke(converter, schema, value);
            Object message = both.getClass().getMethod("getValue").invoke(both);
            made.put("message", HexFormat.of().formatHex(((com.google.protobuf.Message) message).toByteArray()));
        } catch (InvocationTargetException e) {
            made.putNull("message");
        }
        return made;
    }

    private static JsonNode tree(byte[] json) throws Exception {
        return json == null ? null : JSON.readTree(json);
    }
}
