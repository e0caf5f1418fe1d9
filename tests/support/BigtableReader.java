import com.google.api.gax.rpc.ApiException;
import com.google.api.gax.rpc.ServerStream;
import com.google.cloud.bigtable.data.v2.BigtableDataClient;
import com.google.cloud.bigtable.data.v2.BigtableDataSettings;
import com.google.cloud.bigtable.data.v2.models.AddToCell;
import com.google.cloud.bigtable.data.v2.models.ChangeStreamContinuationToken;
import com.google.cloud.bigtable.data.v2.models.ChangeStreamMutation;
import com.google.cloud.bigtable.data.v2.models.ChangeStreamRecord;
import com.google.cloud.bigtable.data.v2.models.CloseStream;
import com.google.cloud.bigtable.data.v2.models.DeleteCells;
import com.google.cloud.bigtable.data.v2.models.DeleteFamily;
import com.google.cloud.bigtable.data.v2.models.Entry;
import com.google.cloud.bigtable.data.v2.models.Heartbeat;
import com.google.cloud.bigtable.data.v2.models.MergeToCell;
import com.google.cloud.bigtable.data.v2.models.Range.ByteStringRange;
import com.google.cloud.bigtable.data.v2.models.ReadChangeStreamQuery;
import com.google.cloud.bigtable.data.v2.models.SetCell;
import com.google.cloud.bigtable.data.v2.models.Value;
import com.google.gson.GsonBuilder;
import com.google.protobuf.ByteString;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Prints the changes of a table by Google's client: a line of JSON for each, and at the end the number of closed partitions.
 *
 * <p>Arguments: host, port, start and end, which are microseconds.
 */
public class BigtableReader {
    /** So long a token waits for others to cover a new partition with it, in milliseconds. */
    private static final long PATIENCE_MS = 500;

    private final BigtableDataClient client;
    private final Instant start;
    private final Instant end;
    private final Map<ByteStringRange, ChangeStreamContinuationToken> idle = new HashMap<>();
    private final Set<ByteStringRange> wanted = new HashSet<>();
    private int running = 0;
    private int closed = 0;
    private Throwable failure = null;

    private BigtableReader(BigtableDataClient client, Instant start, Instant end) {
        this.client = client;
        this.start = start;
        this.end = end;
    }

    public static void main(String[] arguments) throws Exception {
        BigtableDataSettings settings = BigtableDataSettings.newBuilderForEmulator(arguments[0], Integer.parseInt(arguments[1]))
                .setProjectId("project")
                .setInstanceId("instance")
                .build();
        try (BigtableDataClient client = BigtableDataClient.create(settings)) {
            new BigtableReader(client, instant(arguments[2]), instant(arguments[3])).run();
        }
    }

    private static Instant instant(String micros) {
        return Instant.EPOCH.plusNanos(Math.multiplyExact(Long.parseLong(micros), 1_000L));
    }

    private synchronized void run() throws Exception {
        for (ByteStringRange keys : client.generateInitialChangeStreamPartitions("table")) {
            open(keys, List.of());
        }
        while (running > 0 || !idle.isEmpty()) {
            int before = closed;
            openCovered();
            wait(PATIENCE_MS);
            if (failure != null) {
                throw new IllegalStateException(failure);
            }
            if (closed == before) {
                // The other parts of their partitions may never come: alone they may be partitions again.
                List<ChangeStreamContinuationToken> alone = new ArrayList<>(idle.values());
                idle.clear();
                alone.forEach(token -> open(token.getPartition(), List.of(token)));
            }
        }
        System.out.println(closed);
    }

    private void openCovered() {
        for (ByteStringRange keys : List.copyOf(wanted)) {
            List<ChangeStreamContinuationToken> parts = new ArrayList<>(idle.values());
            parts.removeIf(part -> !holds(keys, part.getPartition()));
            parts.sort(Comparator.comparing(part -> part.getPartition().getStart(), ByteString.unsignedLexicographicalComparator()));
            if (makeUp(parts, keys)) {
                wanted.remove(keys);
                parts.forEach(part -> idle.remove(part.getPartition()));
                open(keys, parts);
            }
        }
    }

    private void open(ByteStringRange keys, List<ChangeStreamContinuationToken> tokens) {
        running++;
        Thread thread = new Thread(() -> {
            Throwable wrong = null;
            try {
                read(keys, tokens);
            } catch (Throwable error) {
                wrong = error;
            }
            synchronized (this) {
                running--;
                failure = failure == null ? wrong : failure;
                notifyAll();
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private void read(ByteStringRange keys, List<ChangeStreamContinuationToken> tokens) {
        while (true) {
            ReadChangeStreamQuery query = ReadChangeStreamQuery.create("table")
                    .streamPartition(keys)
                    .endTime(end)
                    .heartbeatDuration(Duration.ofSeconds(1));
            ServerStream<ChangeStreamRecord> records =
                    client.readChangeStream(tokens.isEmpty() ? query.startTime(start) : query.continuationTokens(tokens));
            try {
                for (ChangeStreamRecord record : records) {
                    if (record instanceof CloseStream close) {
                        close(close);
                        return;
                    }
                    if (record instanceof Heartbeat heartbeat) {
                        tokens = List.of(heartbeat.getChangeStreamContinuationToken());
                    } else {
                        ChangeStreamMutation change = (ChangeStreamMutation) record;
                        print(change);
                        tokens = List.of(ChangeStreamContinuationToken.create(keys, change.getToken()));
                    }
                }
            } catch (ApiException broken) {
                // The client itself goes on after some of the errors only.
                continue;
            }
        }
    }

    private synchronized void close(CloseStream close) {
        if (close.getChangeStreamContinuationTokens().isEmpty()) {
            return;
        }
        closed++;
        close.getChangeStreamContinuationTokens().forEach(token -> idle.put(token.getPartition(), token));
        wanted.addAll(close.getNewPartitions());
    }

    private static synchronized void print(ChangeStreamMutation change) {
        List<List<Object>> entries = change.getEntries().stream().map(BigtableReader::entry).toList();
        Instant committed = change.getCommitTime();
        List<Object> line = Arrays.asList(
                hex(change.getRowKey()),
                Math.addExact(Math.multiplyExact(committed.getEpochSecond(), 1_000_000L), committed.getNano() / 1_000),
                change.getType().name(),
                change.getSourceClusterId().isEmpty() ? null : change.getSourceClusterId(),
                change.getTieBreaker(),
                entries);
        System.out.println(new GsonBuilder().serializeNulls().create().toJson(line));
    }

    private static List<Object> entry(Entry entry) {
        if (entry instanceof SetCell cell) {
            return Arrays.asList("SET_CELL", cell.getFamilyName(), hex(cell.getQualifier()), cell.getTimestamp(), null, hex(cell.getValue()));
        }
        if (entry instanceof DeleteCells cells) {
            Long past = cells.getTimestampRange().getEnd();
            return Arrays.asList("DELETE_CELLS", cells.getFamilyName(), hex(cells.getQualifier()), cells.getTimestampRange().getStart(),
                    past == 0 ? null : past, null);
        }
        if (entry instanceof DeleteFamily family) {
            return Arrays.asList("DELETE_FAMILY", family.getFamilyName(), null, null, null, null);
        }
        if (entry instanceof AddToCell cell) {
            return aggregated("ADD_TO_CELL", cell.getFamily(), cell.getQualifier(), cell.getTimestamp(), cell.getInput());
        }
        MergeToCell cell = (MergeToCell) entry;
        return aggregated("MERGE_TO_CELL", cell.getFamily(), cell.getQualifier(), cell.getTimestamp(), cell.getInput());
    }

    private static List<Object> aggregated(String kind, String family, Value qualifier, Value timestamp, Value input) {
        ByteString value = input instanceof Value.IntValue number
                ? ByteString.copyFrom(ByteBuffer.allocate(Long.BYTES).putLong(number.getValue()).flip())
                : ((Value.RawValue) input).getValue();
        return Arrays.asList(kind, family, hex(((Value.RawValue) qualifier).getValue()), ((Value.RawTimestamp) timestamp).getValue(), null,
                hex(value));
    }

    private static String hex(ByteString bytes) {
        return HexFormat.of().formatHex(bytes.toByteArray());
    }

    private static boolean holds(ByteStringRange keys, ByteStringRange part) {
        Comparator<ByteString> order = ByteString.unsignedLexicographicalComparator();
        boolean isBeforeEnd = keys.getEnd().isEmpty() || (!part.getEnd().isEmpty() && order.compare(part.getEnd(), keys.getEnd()) <= 0);
        return order.compare(keys.getStart(), part.getStart()) <= 0 && isBeforeEnd;
    }

    private static boolean makeUp(List<ChangeStreamContinuationToken> parts, ByteStringRange keys) {
        if (parts.isEmpty() || !parts.get(0).getPartition().getStart().equals(keys.getStart())) {
            return false;
        }
        for (int i = 1; i < parts.size(); i++) {
            if (!parts.get(i - 1).getPartition().getEnd().equals(parts.get(i).getPartition().getStart())) {
                return false;
            }
        }
        return parts.get(parts.size() - 1).getPartition().getEnd().equals(keys.getEnd());
    }
}
